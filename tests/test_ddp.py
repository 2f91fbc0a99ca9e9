"""`attach` on real DDP modules over gloo."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.adapters.ddp.handle import DDPHandle
from gradwire.collectives.parts import Part
from world import data


def model(layers=4, width=128, dtype=torch.float32):
    torch.manual_seed(0)
    parts = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts).to(dtype)


def wrap(layers=4, bucket_cap_mb=0.05, **options):
    return DistributedDataParallel(model(layers), bucket_cap_mb=bucket_cap_mb, **options)


def backward(ddp, rank, step, scale=1.0):
    x = data(rank, 16 * 128, seed=step).view(16, 128).to(next(ddp.parameters()).dtype)
    (ddp(x).square().sum() * scale).backward()


def parameters(ddp):
    return torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])


def train(ddp, rank, steps, start=0):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3, momentum=0.9)
    for step in range(start, start + steps):
        backward(ddp, rank, step)
        optimizer.step()
        optimizer.zero_grad()
    return parameters(ddp)


def train_plain_and_identity(rank, options):
    plain = wrap(**options)
    ours = wrap(**options)
    handle = gw.attach(ours, gw.Identity())
    pair = train(plain, rank, 8), train(ours, rank, 8)
    handle.close()
    return pair


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}])
def test_identity_trains_bit_for_bit_like_plain_ddp(worlds, size, options):
    for plain, ours in worlds[size].run(train_plain_and_identity, options):
        assert torch.equal(plain, ours)


def train_codec(rank, spec, layers, steps, options):
    ddp = wrap(layers, **options)
    handle = gw.attach(ddp, gw.parse(spec))
    weights = train(ddp, rank, steps)
    handle.close()
    return weights, handle.stats()


@pytest.mark.parametrize("size", [2, 3])
def test_many_small_buckets_never_hang(worlds, size):
    """A bucket a layer, twelve of them: where PyTorch's PowerSGD hook deadlocks."""
    answers = worlds[size].run(train_codec, "qsgd:bits=4", 12, 50, {})
    assert all(torch.equal(weights, answers[0][0]) for weights, _ in answers)
    assert all(stats.steps == 50 for _, stats in answers)


@pytest.mark.parametrize("spec", ["fp16", "qsgd:bits=4,wire=zstd", "qsgd:bits=8,wire=elias"])
@pytest.mark.parametrize("options", [{"static_graph": True}, {"find_unused_parameters": True}])
def test_codecs_train_in_every_mode(worlds, spec, options):
    """Weights go where those of plain DDP go, and as far."""
    answers = worlds[2].run(train_codec, spec, 3, 5, options)
    start = parameters(model(3))
    plain = worlds[2].run(train_codec, "none", 3, 5, {})[0][0] - start
    moved = answers[0][0] - start
    assert all(torch.equal(weights, answers[0][0]) for weights, _ in answers)
    assert (moved - plain).norm() < 0.25 * plain.norm()  # it is 1 if nothing arrives


def train_half(rank, dtype):
    ddp = DistributedDataParallel(model(dtype=dtype))
    handle = gw.attach(ddp, gw.QSGD(bits=8))
    backward(ddp, rank, 0)
    handle.close()
    return [p.grad for p in ddp.parameters()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients(worlds, dtype):
    answers = worlds[2].run(train_half, dtype)
    for mine, theirs in zip(*answers, strict=True):
        assert mine.dtype == dtype
        assert torch.equal(mine, theirs)
        assert mine.isfinite().all()


class ByPlace(DDPHandle):
    """The broken twin: it knows parameters by their place in the bucket."""

    def _parts(self, buffer, tensors):
        pieces = torch.split(buffer, [p.numel() for p in tensors])
        self.keys = {id(p): str(place) for place, p in enumerate(tensors)}
        return [Part(values, place) for place, values in enumerate(pieces)]


def sum_with_feedback(rank, kind):
    """Six steps in one bucket, whose parameters DDP reorders after the first, no optimizer.

    For each weight: the sum of what went in, of what came out, and what is still owed.
    """
    ddp, local = wrap(bucket_cap_mb=25), model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.adapters.ddp.attach.DDPHandle", kind)
        handle = gw.attach(ddp, gw.QSGD(bits=2), error_feedback=True)
    sent = [torch.zeros_like(p) for p in local.parameters()]
    got = [torch.zeros_like(p) for p in local.parameters()]
    for step in range(6):
        for module, total in ((local, sent), (ddp, got)):
            module.zero_grad()
            backward(module, rank, step)
            for sums, parameter in zip(total, module.parameters(), strict=True):
                sums += parameter.grad
    handle.close()
    keys = getattr(handle, "keys", {id(p): name for name, p in ddp.module.named_parameters()})
    owed = [handle._residuals.of(keys[id(p)], p.numel()) for p in ddp.parameters()]
    return [row for row in zip(sent, got, owed, strict=True) if row[0].numel() >= 10_000]


@pytest.mark.parametrize("kind", [DDPHandle, ByPlace])
def test_residuals_survive_the_rebuilding_of_buckets(worlds, kind):
    """What went in is what came out and what is owed; but not if state is keyed by index."""
    errors = []
    for mine, theirs in zip(*worlds[2].run(sum_with_feedback, kind), strict=True):
        sent, owed = (mine[0] + theirs[0]) / 2, (mine[2] + theirs[2]) / 2
        errors.append((sent - mine[1] - owed.view_as(sent)).norm() / sent.norm())
    assert len(errors) == 4
    assert (max(errors) < 1e-5) == (kind is DDPHandle)


def inf_step(rank):
    """Rank 1 has an inf in step 2 of 5. Were gradients finite, and did the residuals change?"""
    ddp = wrap()
    handle = gw.attach(ddp, gw.QSGD(bits=4), error_feedback=True)
    finite, kept = [], []
    for step in range(5):
        before = handle.state_dict()[f"rank{rank}"]["residuals"]
        ddp.zero_grad()
        backward(ddp, rank, step, scale=float("inf") if (rank, step) == (1, 2) else 1.0)
        after = handle.state_dict()[f"rank{rank}"]["residuals"]
        finite.append(all(p.grad.isfinite().all().item() for p in ddp.parameters()))
        kept.append(all(torch.equal(before[n], after[n]) for n in before))
    handle.close()
    return finite, kept


@pytest.mark.parametrize("size", [2, 3])
def test_one_inf_step_leaves_later_steps_finite(worlds, size):
    for finite, kept in worlds[size].run(inf_step):
        assert finite == [True, True, False, True, True]
        assert kept == [False, False, True, False, False]


def zero_steps(rank, spec):
    ddp = wrap()
    handle = gw.attach(ddp, gw.parse(spec), error_feedback=True)
    for step in range(3):
        backward(ddp, rank, step, scale=0.0)
    handle.close()
    return max(p.grad.abs().max().item() for p in ddp.parameters())


@pytest.mark.parametrize("spec", ["fp16", "qsgd", "qsgd:bits=2,norm=l2,wire=elias"])
def test_zero_gradients_stay_zero(worlds, spec):
    assert worlds[3].run(zero_steps, spec) == [0.0] * 3


def resume(rank):
    """Ten steps at once, and five, a checkpoint, and five more in a new module."""
    whole = wrap()
    handle = gw.attach(whole, gw.QSGD(bits=2), error_feedback=True)
    backwards = [train_step(whole, rank, step) for step in range(10)]
    handle.close()  # or the next one would draw other random numbers
    first = wrap()
    one = gw.attach(first, gw.QSGD(bits=2), error_feedback=True)
    for step in range(5):
        train_step(first, rank, step)
    second = wrap()
    second.load_state_dict(first.state_dict())
    two = gw.attach(second, gw.QSGD(bits=2), error_feedback=True)
    two.load_state_dict(one.state_dict())
    resumed = [train_step(second, rank, step) for step in range(5, 10)]
    for each in (one, two):
        each.close()
    return backwards[-1], resumed[-1]


def train_step(ddp, rank, step):
    ddp.zero_grad()
    backward(ddp, rank, step)
    with torch.no_grad():
        for p in ddp.parameters():
            p -= 1e-3 * p.grad
    return parameters(ddp)


def test_resume_is_bit_identical(worlds):
    for whole, resumed in worlds[2].run(resume):
        assert torch.equal(whole, resumed)


def attach_differently(rank):
    ddp = wrap()
    with pytest.raises(ValueError, match="`codec` is 'qsgd:bits=4' on rank 0") as codec_error:
        gw.attach(ddp, gw.QSGD(bits=4 if rank == 0 else 2))
    with pytest.raises(
        ValueError, match=r"`policy` is .*min_numel=10' on rank 0 and .*min_numel=11'"
    ):
        gw.attach(ddp, gw.QSGD(), min_numel=10 + rank)
    return str(codec_error.value)


def test_ranks_that_differ_are_found_at_attach_and_named(worlds):
    for message in worlds[2].run(attach_differently):
        assert message.endswith("and 'qsgd:bits=2' on rank 1; they must be the same.")


def attach_wrongly(rank):
    ddp = wrap()
    with pytest.raises(TypeError, match="takes a DistributedDataParallel module, got Sequential"):
        gw.attach(ddp.module, gw.QSGD())
    with pytest.raises(TypeError, match="`codec` must be a codec"):
        gw.attach(ddp, 4)
    with pytest.raises(TypeError, match="cannot be summed by all_reduce"):
        gw.attach(ddp, gw.QSGD(), collective="all_reduce")
    handle = gw.attach(ddp, gw.QSGD())
    with pytest.raises(RuntimeError, match="has a communication hook already"):
        gw.attach(ddp, gw.QSGD())
    handle.close()
    with pytest.raises(RuntimeError, match="this gradwire handle is closed"):
        backward(ddp, rank, 0)
    return [t.name for t in threading.enumerate() if t.name.startswith("gradwire")]


def test_wrong_uses_are_refused_with_a_sentence(worlds):
    assert worlds[2].run(attach_wrongly) == [[], []]


class Failing(gw.Identity):
    """Fails on every rank alike, after the hook was accepted."""

    def encode_into(self, *args, **options):
        raise ValueError("the codec ran out of ink")


def fail(rank):
    ddp = wrap()
    handle = gw.attach(ddp, Failing(), collective="all_gather")
    with pytest.raises(RuntimeError, match="the codec ran out of ink"):
        backward(ddp, rank, 0)
    handle.close()
    dist.barrier()


def test_an_error_in_a_codec_is_raised_by_backward_with_its_text(worlds):
    worlds[2].run(fail)


def stats_of(rank):
    ddp = wrap()
    handle = gw.attach(ddp, gw.QSGD(bits=4))
    for step in range(3):
        backward(ddp, rank, step)
    handle.close()
    return handle.stats()


def test_stats(worlds):
    """Two workers: every weight's message goes to the other one, biases by ring all-reduce."""
    weights, biases = 4 * 128 * 128, 4 * 128
    for stats in worlds[2].run(stats_of):
        assert stats.steps == 3
        assert stats.bytes_per_step == weights * 4.0625 / 8 + biases * 4
        expected = (weights * 4.0625 + biases * 32) / (weights + biases)
        assert stats.bits_per_value == pytest.approx(expected)
        assert stats.raw == tuple(f"{2 * i}.bias" for i in range(4))
        assert min(stats.encode_s, stats.comm_s, stats.decode_s) > 0
