"""`handle.log_to` with TensorBoard's own writer and reader."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

import gradwire as gw
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


def nmse(codec, x):
    loss = x - gw.simulate(codec, [x], gw.Key(seed=5)).view_as(x)
    return float(loss.square().sum() / x.square().sum())


def test_error_by_layer_is_that_of_the_gradient(worlds, tmp_path):
    """Other random bits were drawn, but among so many values that hardly shows."""
    options = {"every": 1, "nmse": True, "layers": True}
    worlds[2].run(train, str(tmp_path), "qsgd:bits=4", 2, options)
    found = scalars(str(tmp_path))
    for step in (1, 2):
        local = model()
        backward(local, 0, step - 1)
        for name, parameter in local.named_parameters():
            logged = found[f"gradwire/nmse/{name}"][step]
            expected = nmse(gw.QSGD(bits=4), parameter.grad) if "weight" in name else 0.0
            assert logged == pytest.approx(expected, rel=0.1)
        low, high = sorted(found[f"gradwire/nmse/{n}.weight"][step] for n in (0, 2))
        assert 0 < found["gradwire/nmse"][step] < high
        assert low > 0


@pytest.mark.parametrize("spec", ["none", "fp16", "global-qsgd", "gradiveq", "fft", "ndqsg"])
def test_every_kind_of_codec_has_an_error(worlds, tmp_path, spec):
    worlds[2].run(train, str(tmp_path), spec, 2, {"every": 1, "nmse": True})
    errors = scalars(str(tmp_path))["gradwire/nmse"].values()
    assert all(0 <= error < 1 for error in errors)
    assert all(error == 0 for error in errors) == (spec in ("none", "gradiveq"))


def refuse(rank):
    handle = gw.attach(DistributedDataParallel(model()), gw.QSGD())
    with pytest.raises(ValueError, match="`every` must be at least 1 step, got 0"):
        handle.log_to(None, every=0)
    handle.close()


def test_every_zero_steps_is_refused(worlds):
    worlds[2].run(refuse)
