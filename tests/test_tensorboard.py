"""`handle.log_to` with TensorBoard's own writer and reader."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

import gradwire as gw
from laws import adder_of
from world import data

WIDTH = 128


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def backward(module, rank, step):
    module.zero_grad()
    module(data(rank, 16 * WIDTH, seed=step).view(16, WIDTH)).square().sum().backward()


def train(rank, folder, spec, steps, options):
    """Only rank 0 logs."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.05)
    handle = gw.attach(ddp, gw.parse(spec))
    writer = SummaryWriter(folder) if rank == 0 else None
    if writer is not None:
        handle.log_to(writer, **options)
    for step in range(steps):
        backward(ddp, rank, step)
    handle.close()
    if writer is not None:
        writer.close()
    return handle.stats()


def scalars(folder):
    """Everything that was written: {tag: {step: value}}."""
    events = EventAccumulator(folder)
    events.Reload()
    tags = events.Tags()["scalars"]
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in tags}


def test_means_over_the_steps_since_the_last(worlds, tmp_path):
    options = {"every": 3}
    stats = worlds[2].run(train, str(tmp_path), "qsgd:bits=4", 7, options)[0]
    found = scalars(str(tmp_path))
    assert {f"gradwire/{n}" for n in ("encode_s", "comm_s", "decode_s")} <= set(found)
    assert len(found) == 5
    assert all(list(values) == [3, 6] for values in found.values())
    for step in (3, 6):
        assert found["gradwire/bytes_per_step"][step] == stats.bytes_per_step
        weights, biases = 2 * WIDTH * WIDTH, 2 * WIDTH
        ratio = (weights * 4.0625 + biases * 32) / (32 * (weights + biases))
        assert found["gradwire/of_float32"][step] == pytest.approx(ratio)
    assert sum(found["gradwire/encode_s"].values()) * 3 < stats.encode_s


def test_the_last_step_is_written_when_the_handle_is_closed(worlds, tmp_path):
    worlds[2].run(train, str(tmp_path), "fp16", 4, {"every": 2})
    assert list(scalars(str(tmp_path))["gradwire/bytes_per_step"]) == [2, 4]


def nmse(codec, x, key):
    x = x.reshape(-1)
    loss = x - codec.decode(codec.encode(x, key), x.numel(), key)
    return float(loss.double().square().sum() / x.double().square().sum())


def test_error_by_layer_is_that_of_the_message(worlds, tmp_path):
    options = {"every": 1, "nmse": True, "layers": True}
    worlds[2].run(train, str(tmp_path), "qsgd:bits=4", 2, options)
    found = scalars(str(tmp_path))
    for step in (1, 2):
        local = model()
        backward(local, 0, step - 1)
        for number, (name, parameter) in enumerate(local.named_parameters()):
            logged, key = found[f"gradwire/nmse/{name}"][step], gw.Key(step=step - 1, tensor=number)
            expected = nmse(gw.QSGD(bits=4), parameter.grad, key) if "weight" in name else 0.0
            assert logged == pytest.approx(expected, rel=1e-5)
        low, high = sorted(found[f"gradwire/nmse/{n}.weight"][step] for n in (0, 2))
        assert 0 < found["gradwire/nmse"][step] < high
        assert low > 0


@pytest.mark.parametrize(
    "spec", ["none", "fp16", "global-qsgd", "gradiveq:inner=none", "fft", "ndqsg"]
)
def test_every_kind_of_codec_has_an_error(worlds, tmp_path, spec):
    worlds[2].run(train, str(tmp_path), spec, 2, {"every": 1, "nmse": True})
    errors = scalars(str(tmp_path))["gradwire/nmse"].values()
    assert all(0 <= error < 1 for error in errors)
    assert all(error == 0 for error in errors) == (spec in ("none", "gradiveq:inner=none"))


class Vector(nn.Module):
    """Its gradient is what it is given."""

    def __init__(self, numel):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))

    def forward(self, x):
        return (self.weight * x).sum()


def unlike(rank):
    """Worker 1 has values that are a hundred times as large."""
    return data(rank, 20_000) * 100**rank


def train_unlike(rank, folder, spec, options, steps=2):
    """Steps with the same gradients; only rank 0 logs, the last one, if told where to."""
    ddp = DistributedDataParallel(Vector(20_000))
    handle = gw.attach(ddp, spec, **options)
    writer = SummaryWriter(folder) if rank == 0 and folder else None
    if writer is not None:
        handle.log_to(writer, every=steps, nmse=True)
    means = []
    for _ in range(steps):
        ddp.zero_grad()
        ddp(unlike(rank)).backward()
        means.append(ddp.module.weight.grad.clone())
    owed = handle.state_dict()[f"rank{rank}"]["residuals"].get("weight")
    handle.close()
    if writer is not None:
        writer.close()
    return means, owed


def lost_with_shared_scales(codec, collective, step):
    """What the message of worker 0 loses, from the codec's own methods; and the energy."""
    x, key = unlike(0), gw.Key(step=step)
    shared = torch.maximum(codec.statistics(x), codec.statistics(unlike(1)))
    adder = adder_of(codec, collective, 2, shared)
    sent = torch.empty(adder.code_nbytes(x.numel()), dtype=torch.uint8)
    adder.encode(x, sent, key)
    adder.subtract(sent, lost := x.clone(), key)
    return float(lost.double().square().sum()), float(x.double().square().sum())


@pytest.mark.parametrize("chunk", [None, 5120])
@pytest.mark.parametrize("collective", ["all_reduce", "code_reduce"])
def test_the_error_is_that_of_the_scales_which_workers_share(worlds, tmp_path, collective, chunk):
    """Alone worker 0 would say that it loses less than a five-hundredth."""
    options = {"collective": collective, "chunk": chunk}
    worlds[2].run(train_unlike, str(tmp_path), "global-qsgd", options)
    logged = scalars(str(tmp_path))["gradwire/nmse"]
    codec = gw.GlobalQSGD()
    lost, energy = lost_with_shared_scales(codec, collective, 1)
    alone = unlike(0) - gw.simulate(codec, [unlike(0)], gw.Key(step=1))
    assert logged == {2: pytest.approx(lost / energy, rel=1e-5)}
    assert lost > 500 * alone.double().square().sum()


def test_the_error_with_feedback_is_what_is_owed(worlds, tmp_path):
    """Of what was encoded, the gradient with the residual of the step before."""
    spec, options = "qsgd:bits=2", {"error_feedback": True}
    (_, owed), _ = worlds[2].run(train_unlike, str(tmp_path), spec, options)
    codec, x, key = gw.QSGD(bits=2), unlike(0), gw.Key()
    source = x + (x - codec.decode(codec.encode(x, key), x.numel(), key))
    expected = owed.double().square().sum() / source.double().square().sum()
    assert scalars(str(tmp_path))["gradwire/nmse"] == {2: pytest.approx(float(expected), rel=1e-5)}


LEARNING = "gradiveq:slice=100,energy=0.3,warmup_steps=0,train_steps=8,compress_steps=9,inner=none"


@pytest.mark.parametrize("spec", ["qsgd", "global-qsgd", "fp16", "ndqsg:max_failures=1", LEARNING])
def test_logging_changes_no_mean(worlds, tmp_path, spec):
    steps = 10 if spec == LEARNING else 2
    logged = worlds[2].run(train_unlike, str(tmp_path), spec, {}, steps)
    plain = worlds[2].run(train_unlike, None, spec, {}, steps)
    for (means, _), (expected, _) in zip(logged, plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(means, expected, strict=True))
    (error,) = scalars(str(tmp_path))["gradwire/nmse"].values()
    x, mean = unlike(0), (unlike(0) + unlike(1)) / 2
    most = (x - mean).square().sum() / x.square().sum()  # a projection loses no more of x - mean
    assert 0 < error < (most if spec == LEARNING else 1000)


def refuse(rank):
    handle = gw.attach(DistributedDataParallel(model()), gw.QSGD())
    with pytest.raises(ValueError, match="`every` must be at least 1 step, got 0"):
        handle.log_to(None, every=0)
    handle.close()


def test_every_zero_steps_is_refused(worlds):
    worlds[2].run(refuse)
