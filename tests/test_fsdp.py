"""`attach` on real FSDP2 modules over gloo."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

import gradwire as gw
from gradwire import scratch
from world import data

LAYERS, WIDTH = 3, 127  # odd, so that shards are padded


def model():
    torch.manual_seed(0)
    parts = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*parts, nn.Linear(WIDTH, 3))


def shard(mesh=None, **options):
    """Every layer but the last, which is the root's, is a unit."""
    sharded = model()
    for layer in sharded[: 2 * LAYERS : 2]:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(sharded, mesh=mesh, **options)


def backward(module, rank, step, scale=1.0):
    x = data(rank, 16 * WIDTH, seed=step).view(16, WIDTH)
    (module(x).float().square().sum() * scale).backward()


def shards(module, of="grad"):
    """The gradients, or the parameters, that this worker holds."""
    tensors = [p.grad if of == "grad" else p.detach() for p in module.parameters()]
    return [tensor.to_local().clone() for tensor in tensors]


def equal(mine, theirs):
    return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def train_step(module, rank, step):
    module.zero_grad()
    backward(module, rank, step)
    with torch.no_grad():
        for p in module.parameters():
            p -= 1e-3 * p.grad
    return shards(module, "data")


def train_plain_and_identity(rank):
    plain, ours = shard(), shard()
    gw.attach(ours, gw.Identity())
    return [(train_step(plain, rank, i), train_step(ours, rank, i)) for i in range(4)][-1]


def test_identity_between_two_trains_bit_for_bit_like_plain_fsdp(worlds):
    for plain, ours in worlds[2].run(train_plain_and_identity):
        assert equal(plain, ours)


def layout(gradients, world):
    """The shards of a unit as FSDP lays them out: of each parameter the rows, padded with zeros."""
    rows = [[] for _ in range(world)]
    for gradient in gradients:
        height = -(-len(gradient) // world)
        padded = torch.zeros(height * world, *gradient.shape[1:])
        padded[: len(gradient)] = gradient
        for row, chunk in zip(rows, padded.split(height), strict=True):
            row.append(chunk.reshape(-1))
    return [torch.cat(row) for row in rows]


def reduce_once(rank, codec, setting, dtype):
    """What each worker's layer 2 has to say, and what shards of it come out, in the second step."""
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)
    module, local = shard(mp_policy=policy), model()
    setting(module)
    gw.attach(module, codec, seed=3, error_feedback=False)
    for step in range(2):
        module.zero_grad()
        local.zero_grad()
        backward(module, rank, step)
        backward(local, rank, step)
    said = [p.grad for p in local[2].parameters()]
    return layout(said, dist.get_world_size()), shards(module[2])


def leave(module):
    pass


def ask_for_sums(module):
    for each in module[: 2 * LAYERS : 2]:
        each.set_force_sum_reduction_for_comms(True)


def ask_for_a_fourth(module):
    for each in module[: 2 * LAYERS : 2]:
        each.set_gradient_divide_factor(4.0)


def assert_laid_out(got, flat, world):
    """`got` are the shards that FSDP cuts out of `flat`, which has padding between them."""
    for part, whole in zip(got, model()[2].parameters(), strict=True):
        room = -(-len(whole) // world) * whole[0].numel()
        assert torch.equal(part.reshape(-1), flat[: part.numel()])
        flat = flat[room:]
    assert not flat.numel()


def expect(codec, answers, owner, dtype=torch.float32):
    """The mean of a shard of layer 2, the third unit. Each has numbers for two legs."""
    world = len(answers)
    key = gw.Key(seed=3, step=1, tensor=2 * 2 * world + owner)
    return gw.simulate(codec, [rows[owner].to(dtype) for rows, _ in answers], key, "all_gather")


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("spec", ["qsgd:bits=4", "qsgd:bits=2,block=none", "fp16", "global-qsgd"])
def test_gradients_are_what_simulate_says(worlds, size, spec):
    codec = gw.parse(spec)
    answers = worlds[size].run(reduce_once, codec, leave, None)
    for owner, (_, got) in enumerate(answers):
        assert_laid_out(got, expect(codec, answers, owner), size)


@pytest.mark.parametrize(("setting", "factor"), [(ask_for_sums, 1.0), (ask_for_a_fourth, 0.5)])
def test_sums_and_factors_are_honoured(worlds, setting, factor):
    """AVG, SUM and PREMUL_SUM: with two workers all factors are powers of two, hence exact."""
    answers = worlds[2].run(reduce_once, gw.QSGD(), setting, None)
    for owner, (_, got) in enumerate(answers):
        assert_laid_out(got, factor * expect(gw.QSGD(), answers, owner), 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_reduction(worlds, dtype):
    """FSDP halves float16 before the sum. Results are rounded to the type of the reduction."""
    answers = worlds[2].run(reduce_once, gw.QSGD(bits=8), leave, dtype)
    for owner, (_, got) in enumerate(answers):
        expected = expect(gw.QSGD(bits=8), answers, owner, dtype)
        assert_laid_out(got, expected.to(dtype).float(), 2)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_identity_adds_in_the_order_of_ranks(worlds, dtype):
    """Among three, where orders differ: a ring begins with another rank in every shard."""
    answers = worlds[3].run(reduce_once, gw.Identity(), leave, dtype)
    dtype = dtype or torch.float32
    for owner, (_, got) in enumerate(answers):
        one, two, three = (rows[owner].to(dtype).float() for rows, _ in answers)
        assert_laid_out(got, ((one + two + three) / 3).to(dtype).float(), 3)


def reduce_raw(rank, setting):
    """Buffers below `min_numel`, and what plain FSDP makes of them."""
    ours, plain = shard(), shard()
    setting(ours)
    handle = gw.attach(ours, gw.QSGD(), min_numel=10**6)
    backward(ours, rank, 0)
    backward(plain, rank, 0)
    return shards(ours[2]), shards(plain[2]), handle.stats()


@pytest.mark.parametrize(
    ("setting", "factor"), [(leave, 1.0), (ask_for_sums, 1.0), (ask_for_a_fourth, 0.5)]
)
def test_small_buffers_travel_raw(worlds, setting, factor):
    for ours, plain, stats in worlds[2].run(reduce_raw, setting):
        assert equal(ours, [factor * gradient for gradient in plain])
        assert set(stats.raw) == {"", "0", "2", "4"}
        assert stats.bits_per_value == 32
        values = LAYERS * (128 * WIDTH + 128) + 4 * WIDTH + 4  # in buffers, padded to even rows
        assert stats.bytes_sent == 4 * values // 2


def residuals_of(handle, rank, leg="within"):
    """By module."""
    owed = handle.state_dict()[f"rank{rank}"]["residuals"]
    return {n.removeprefix(f"{leg}/"): r for n, r in owed.items() if n.startswith(f"{leg}/")}


def inf_step(rank):
    """Rank 1 has an inf in step 2 of 5. Were gradients finite, and did the residuals change?"""
    module = shard()
    handle = gw.attach(module, gw.QSGD(bits=4), error_feedback=True)
    finite, kept = [], []
    for step in range(5):
        before = residuals_of(handle, rank)
        module.zero_grad()
        backward(module, rank, step, scale=float("inf") if (rank, step) == (1, 2) else 1.0)
        after = residuals_of(handle, rank)
        finite.append(all(bool(gradient.isfinite().all()) for gradient in shards(module)))
        kept.append(bool(before) and all(torch.equal(before[n], after[n]) for n in before))
    return finite, kept


@pytest.mark.parametrize("size", [2, 3])
def test_one_inf_step_passes_through_and_leaves_residuals_alone(worlds, size):
    for finite, kept in worlds[size].run(inf_step):
        assert finite == [True, True, False, True, True]
        assert kept == [False, False, True, False, False]


def shard_hybrid(within=None, **options):
    """Replicas {0, 2} and {1, 3} of shards {0, 1} and {2, 3}."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    module = shard(mesh["shard"])
    options = {"replicas": mesh["replicate"], "within": within, "min_numel": 1000, **options}
    return module, gw.attach(module, gw.QSGD(bits=4), **options), shard(mesh)


def reduce_hybrid(rank):
    module, _, _ = shard_hybrid(seed=3)
    local = model()
    backward(module, rank, 0)
    backward(local, rank, 0)
    return layout([p.grad for p in local[2].parameters()], 2), shards(module[2])


def test_what_goes_between_replicas_is_what_simulate_says(worlds):
    """The mean of each replica, in halves and therefore exact, and the third leg of three."""
    answers = worlds[4].run(reduce_hybrid)
    for rank, (_, got) in enumerate(answers):
        owner = rank % 2
        means = [(answers[i][0][owner] + answers[i + 1][0][owner]) / 2 for i in (0, 2)]
        key = gw.Key(seed=3, tensor=(2 * 3 + 2) * 2 + owner)
        assert_laid_out(got, gw.simulate(gw.QSGD(bits=4), means, key), 2)


def train_hybrid(rank, within, steps):
    """How far ours and plain FSDP have moved from the start, and what else there is to see."""
    module, handle, native = shard_hybrid(within, error_feedback=True)
    begin = shards(module, "data")
    ours = [train_step(module, rank, step) for step in range(steps)][-1]
    plain = [train_step(native, rank, step) for step in range(steps)][-1]
    moved = [[a - b for a, b in zip(run, begin, strict=True)] for run in (ours, plain)]
    return ours, *moved, handle.stats(), handle.state_dict()[f"rank{rank}"]


@pytest.mark.parametrize("within", [None, gw.QSGD(bits=8)])
def test_replicas_of_hsdp_stay_bitwise_equal_and_move_like_plain_fsdp(worlds, within):
    """With 4 bits and error feedback; had nothing arrived, `ours` were all that is missing."""
    answers = worlds[4].run(train_hybrid, within, 5)
    for one, two in ((0, 2), (1, 3)):
        assert equal(answers[one][0], answers[two][0])
    for _, ours, plain, stats, state in answers:
        for mine, native in zip(ours, plain, strict=True):
            assert (mine - native).norm() < 0.1 * native.norm()
        assert (stats.steps, stats.raw) == (5, ("",))
        legs = ("between",) if within is None else ("between", "within")
        assert set(state["residuals"]) == {f"{leg}/{n}" for leg in legs for n in (0, 2, 4)}


def attach_wrongly(rank):
    module = shard()
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    with pytest.raises(TypeError, match="which is FSDP1; call"):
        gw.attach(FullyShardedDataParallel(model(), device_id=torch.device("cpu")), gw.QSGD())
    with pytest.raises(ValueError, match=r'pass `replicas=mesh\["replicate"\]`'):
        gw.attach(shard(mesh), gw.QSGD())
    with pytest.raises(ValueError, match="`within` goes with `replicas`"):
        gw.attach(module, gw.QSGD(), within=gw.QSGD())
    for adaptive in (gw.GradiVeQ(), gw.NDQSG(), gw.PowerSGD()):
        with pytest.raises(
            TypeError, match=r"use it under DistributedData.* without memory, `DQSG`"
        ):
            gw.attach(module, adaptive)
    with pytest.raises(TypeError, match="`codec` must be a codec"):
        gw.attach(module, 4)
    with pytest.raises(ValueError, match="`seed` is 0 on rank 0 and 1 on rank 1"):
        gw.attach(module, gw.QSGD(), seed=rank)
    with pytest.raises(ValueError, match=r"`seed` must be an integer in \[0, 2\*\*64\), got -1"):
        gw.attach(module, gw.QSGD(), seed=-1)
    handle = gw.attach(module, gw.QSGD())
    handle.close()
    with pytest.raises(RuntimeError, match="this gradwire handle is closed"):
        backward(module, rank, 0)


def test_wrong_uses_are_refused_with_a_sentence(worlds):
    worlds[2].run(attach_wrongly)


class Branches(nn.Module):
    """Uses only one of its two layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=i == 0) for i in range(2))

    def forward(self, x, which):
        return self.layers[which](x)


def change_parameters(rank):
    torch.manual_seed(0)
    x = data(rank, WIDTH).view(1, WIDTH)
    for which in (0, 1):
        module = fully_shard(Branches())
        gw.attach(module, gw.QSGD(), error_feedback=True)
        with pytest.raises(RuntimeError, match="error feedback needs the same ones in every step"):
            module(x, which).sum().backward()
    module = fully_shard(Branches())
    module.set_reduce_scatter_unused_params(True)
    handle = gw.attach(module, gw.QSGD(), error_feedback=True)
    for which in (0, 1):
        module(x, which).sum().backward()
    assert handle.stats().steps == 2


def test_residuals_of_other_parameters_are_not_mixed_up(worlds):
    worlds[2].run(change_parameters)


def test_layers_taken_together_are_one_buffer(worlds):
    for steps, residuals in worlds[2].run(train_together):
        assert steps == 1
        assert residuals == ["0"]


def train_together(rank):
    module = model()
    fully_shard([module[0], module[2], module[4]])
    fully_shard(module)
    handle = gw.attach(module, gw.QSGD(), error_feedback=True)
    backward(module, rank, 0)
    return handle.stats().steps, list(residuals_of(handle, rank))


def let_go_of_replicas(rank):
    """Attached between replicas, and then without; plain FSDP over the shards alone."""
    module, handle, _ = shard_hybrid()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    plain = shard(mesh["shard"])
    handle.close()
    gw.attach(module, gw.Identity())
    backward(module, rank, 0)
    backward(plain, rank, 0)
    return shards(module), shards(plain)


def test_an_earlier_attachment_between_replicas_is_forgotten(worlds):
    for ours, plain in worlds[4].run(let_go_of_replicas):
        assert equal(ours, plain)


def number(rank):
    """Streams of every unit, of which one is sharded over all and another over pairs."""
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))["shard"]
    module = model()
    for layer, mesh in ((module[0], None), (module[2], None), (module[4], pairs)):
        fully_shard(layer, mesh=mesh)
    handle = gw.attach(fully_shard(module), gw.QSGD(bits=4))
    return [[u.stream(leg) + i for leg in (0, 1) for i in range(u.shards)] for u in handle._units]


def test_units_of_different_shard_counts_share_no_stream(worlds):
    for streams in worlds[4].run(number):
        assert [len(unit) for unit in streams] == [8, 8, 8, 4]
        numbers = [each for unit in streams for each in unit]
        assert len(set(numbers)) == len(numbers)


def close(rank):
    module, held = shard(), scratch.of_thread().nbytes
    handle = gw.attach(module, gw.FFTSparse(), weights=gw.QSGD(bits=8))
    backward(module, rank, 0)
    before = handle.stats()
    handle.close()
    return before, handle.stats(), scratch.of_thread().nbytes - held


def test_a_closed_handle_holds_no_buffers_and_keeps_its_statistics(worlds):
    for before, after, elsewhere in worlds[2].run(close):
        assert before.buffer_bytes > 4 * 128 * WIDTH  # a vector of coefficients, at least
        assert after == replace(before, buffer_bytes=0)
        assert elsewhere == 0
