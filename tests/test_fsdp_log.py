"""`plan()` and `log_to()` of an attachment to FSDP2."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradwire as gw
from test_fsdp import WIDTH, backward, equal, layout, model, shard, shard_hybrid, shards

BUFFER = 128 * WIDTH + 128  # of a layer among two or four: rows are padded to an even number
SHARD = BUFFER // 2


class Notes:
    """A writer that keeps what it is given: {tag: {step: value}}."""

    def __init__(self):
        self.found = {}

    def add_scalar(self, tag, value, step):
        self.found.setdefault(tag.removeprefix("gradwire/"), {})[step] = value


def plans(rank):
    whole = gw.attach(shard(), gw.QSGD(bits=4), weights=gw.QSGD(bits=8))
    before = whole.plan()
    module, handle, _ = shard_hybrid(gw.QSGD(bits=8))
    backward(module, rank, 0)
    return before, handle.plan(), handle.stats()


def rows_of(plan):
    return [(row.parameter, row.values, row.codec, row.collective) for row in plan]


def test_the_plan_has_a_row_for_every_module_and_leg(worlds):
    for whole, hybrid, stats in worlds[4].run(plans):
        assert rows_of(whole.rows) == [
            ("root", 4 * WIDTH + 4, "raw, small", "reduce_scatter"),
            *[(n, BUFFER, "qsgd:bits=4", "reduce_scatter") for n in ("0", "2", "4")],
        ]
        assert rows_of(whole.weights)[1] == ("0", BUFFER, "qsgd:bits=8", "all_gather")
        assert rows_of(hybrid.rows) == [
            ("root", 4 * WIDTH + 4, "raw, small", "reduce_scatter"),
            ("root", 2 * WIDTH + 2, "raw, small", "all_reduce"),
            *[
                row
                for name in ("0", "2", "4")
                for row in (
                    (name, BUFFER, "qsgd:bits=8", "reduce_scatter"),
                    (name, SHARD, "qsgd:bits=4", "all_gather"),
                )
            ],
        ]
        assert hybrid.bits_per_value == pytest.approx(stats.bits_per_value, rel=1e-12)
        assert "weights\nparameter" in str(whole)
        assert str(hybrid).endswith("bits per value in all")


def plan_types(rank):
    """Frozen and 64-bit modules, and weights of several types."""
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    module[0].requires_grad_(False)
    module[1].double()
    module[2].bias = nn.Parameter(module[2].bias.detach().half(), requires_grad=False)
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    for layer, options in zip(module, ({}, {}, {"mp_policy": policy}), strict=True):
        fully_shard(layer, **options)
    fully_shard(module)
    return gw.attach(module, gw.QSGD(), weights=gw.QSGD(bits=8)).plan()


def test_the_plan_knows_types_and_what_is_frozen(worlds):
    for plan in worlds[2].run(plan_types):
        assert rows_of(plan.rows) == [
            ("1", BUFFER, "raw, float64", "reduce_scatter"),
            ("2", 128 * WIDTH, "qsgd:bits=4", "reduce_scatter"),
        ]
        assert [row.codec for row in plan.weights] == ["qsgd:bits=8", "raw, float64", "raw, uint8"]
        assert plan.weights[2].values == 4 * 128 * WIDTH + 2 * 128


def log(rank, spec, steps, options, feedback):
    """Only rank 0 logs; and what every layer of every worker had to say."""
    local, module, quiet = model(), shard(), shard()
    handle = gw.attach(module, gw.parse(spec), error_feedback=feedback)
    gw.attach(quiet, gw.parse(spec), error_feedback=feedback)
    writer, said = Notes(), []
    if rank == 0:
        handle.log_to(writer, **options)
    for step in range(steps):
        for each in (local, module, quiet):
            each.zero_grad()
            backward(each, rank, step)
        assert equal(shards(module), shards(quiet))  # logging changes nothing
        said.append([layout([p.grad for p in local[i].parameters()], 2) for i in (0, 2, 4, 6)])
    handle.close()
    return writer.found, said, handle.stats()


def lost(codec, rows, step, unit, owed):
    """The squared norms of what rank 0's payloads lose of these shards, and of the shards."""
    errors = []
    for shard_number, row in enumerate(rows):
        key = gw.Key(step=step, tensor=2 * 2 * unit + shard_number)
        row = row + owed[shard_number]
        owed[shard_number] = row - codec.decode(codec.encode(row, key), row.numel(), key)
        errors.append((owed[shard_number].double().square().sum(), row.double().square().sum()))
    return [float(sum(column)) for column in zip(*errors, strict=True)]


@pytest.mark.parametrize("spec", ["qsgd:bits=4", "global-qsgd", "fp16"])
def test_the_error_is_that_of_the_messages_sent(worlds, spec):
    """With error feedback of what was added, so a later step depends on all before it."""
    options = {"every": 2, "nmse": True, "layers": True}
    (found, said, stats), (nothing, _, _) = worlds[2].run(log, spec, 5, options, True)
    assert nothing == {}
    assert all(list(values) == [2, 4] for values in found.values())
    codec, owed = gw.parse(spec), {unit: [0.0, 0.0] for unit in (1, 2, 3)}
    for step, (*layers, root) in enumerate(said):
        errors = {
            name: lost(codec, layers[unit - 1], step, unit, owed[unit])
            for name, unit in (("0", 1), ("2", 2), ("4", 3))
        }
        errors["root"] = [0.0, sum(float(x.double().square().sum()) for x in root)]
        if step + 1 in (2, 4):
            for name, (gone, whole) in errors.items():
                assert found[f"nmse/{name}"][step + 1] == pytest.approx(gone / whole, rel=1e-5)
            gone, whole = (sum(column) for column in zip(*errors.values(), strict=True))
            assert found["nmse"][step + 1] == pytest.approx(gone / whole, rel=1e-5)
    for step in (2, 4):
        assert found["bytes_per_step"][step] == stats.bytes_per_step
        plain = 4 * (3 * BUFFER + 4 * WIDTH + 4) / 2
        assert found["of_float32"][step] == pytest.approx(stats.bytes_per_step / plain)
        assert found["encode_s"][step] > 0


def log_hybrid(rank, spec, feedback):
    """Workers that hold the same shards differ in scale by 100; only rank 0 logs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    writer, found = Notes(), []
    for logs in (True, False):
        module = shard(mesh["shard"])
        options = {"replicas": mesh["replicate"], "error_feedback": feedback, "min_numel": 1000}
        handle = gw.attach(module, gw.parse(spec), **options)
        if rank == 0 and logs:
            handle.log_to(writer, every=1, nmse=True)
        for step in range(2):
            module.zero_grad()
            backward(module, rank, step, scale=1.0 if rank < 2 else 1e4)
            found.append(shards(module))
        handle.close()
    assert all(map(equal, found[:2], found[2:]))
    return writer.found


@pytest.mark.parametrize("feedback", [False, True])
def test_between_replicas_the_error_is_that_with_shared_scales(worlds, feedback):
    """A small gradient is lost in the steps of a large one, and would not be if sent alone."""
    found = worlds[4].run(log_hybrid, "global-qsgd", feedback)[0]
    assert found["nmse"][1] > 10
    assert 0.2 < found["of_float32"][1] < 0.8
    alone = worlds[4].run(log_hybrid, "qsgd:bits=4", feedback)[0]
    assert 0 < alone["nmse"][1] < 0.1


def refuse(rank):
    handle = gw.attach(shard(), gw.QSGD())
    with pytest.raises(ValueError, match="`every` must be at least 1 step, got 0"):
        handle.log_to(Notes(), every=0)


def test_every_zero_steps_is_refused(worlds):
    worlds[2].run(refuse)
