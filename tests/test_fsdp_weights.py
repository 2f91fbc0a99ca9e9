"""The weights that FSDP2 gathers, through a codec of their own (`weights=`)."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradwire as gw
from test_fsdp import backward, equal, layout, model, shard, train_step

CODECS = [gw.QSGD(bits=8), gw.DQSG(levels=127), gw.QSGD(bits=8, wire="zstd")]
LAYER = 2  # the third unit of `model`


def gathered(module):
    """The weights that this worker computes with, exactly as they are in memory."""
    module[LAYER].unshard()
    found = [p.detach().clone() for p in module[LAYER].parameters()]
    module[LAYER].reshard()
    return found


def gather(rank, codec, dtype=None):
    module = shard(mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    gw.attach(module, gw.QSGD(), weights=codec, seed=3)
    return gathered(module)


def rounded(codec, world):
    """What the owners' payloads say of the weights of the layer, by owner."""
    rows = layout(list(model()[LAYER].parameters()), world)
    for owner, row in enumerate(rows):
        key = gw.Key(seed=3, tensor=2 * 2 * world + owner, hop=3)
        yield row, codec.decode(codec.encode(row, key), row.numel(), key)


def unpadded(flat, weights, owner, world):
    """The stretch of each of `weights` that `flat`, the shard of `owner`, has."""
    for whole in weights:
        height = -(-len(whole) // world)
        here = whole[owner * height : (owner + 1) * height]
        yield here.reshape(-1), flat[: here.numel()]
        flat = flat[height * whole[0].numel() :]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_all_compute_with_what_the_owners_payloads_say(worlds, size, codec):
    answers = worlds[size].run(gather, codec)
    for got in answers:
        assert equal(got, answers[0])
        for owner, (_, said) in enumerate(rounded(codec, size)):
            for mine, expected in unpadded(said, got, owner, size):
                assert torch.equal(mine, expected)


@pytest.mark.parametrize(("codec", "steps"), [(gw.QSGD(bits=8), 1.0), (gw.DQSG(levels=127), 0.5)])
def test_an_error_is_a_step_at_most_and_half_a_step_with_dither(codec, steps):
    for row, said in rounded(codec, 2):
        blocks = torch.nn.functional.pad((said - row).abs(), (0, -row.numel() % 512)).view(-1, 512)
        values = torch.nn.functional.pad(row.abs(), (0, -row.numel() % 512)).view(-1, 512)
        assert (blocks.amax(1) <= (steps + 1e-3) * values.amax(1) / 127).all()
        assert (said - row).abs().max() > 0


def test_weights_in_bfloat16_are_rounded_to_that(worlds):
    codec = gw.QSGD(bits=8)
    answers = worlds[2].run(gather, codec, torch.bfloat16)
    rows = layout([p.detach().bfloat16() for p in model()[LAYER].parameters()], 2)
    for got in answers:
        assert equal(got, answers[0])
        assert got[0].dtype == torch.bfloat16
        for owner, row in enumerate(rows):
            key = gw.Key(seed=3, tensor=2 * 2 * 2 + owner, hop=3)
            said = codec.decode(codec.encode(row, key), row.numel(), key)
            for mine, expected in unpadded(said.bfloat16(), got, owner, 2):
                assert torch.equal(mine, expected)


class Watched(nn.Linear):
    """Notes its weights whenever they are computed with."""

    def forward(self, x):
        return Note.apply(super().forward(x), self)


class Note(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, layer):
        ctx.layer = layer
        seen.append(layer.weight.detach().clone())
        return y.clone()

    @staticmethod
    def backward(ctx, gradient):
        seen.append(ctx.layer.weight.detach().clone())
        return gradient, None


seen = []


def watch(rank):
    torch.manual_seed(0)
    module = nn.Sequential(fully_shard(Watched(127, 127)), nn.Linear(127, 3))
    fully_shard(module)
    gw.attach(module, gw.QSGD(), weights=gw.QSGD(bits=8))
    seen.clear()
    for step in range(2):
        backward(module, rank, step)
    return list(seen)


def test_a_backward_pass_sees_the_weights_of_its_forward_pass(worlds):
    """They are gathered twice. In the next step the same weights are rounded anew."""
    for first, again, second, last in worlds[2].run(watch):
        assert torch.equal(first, again)
        assert torch.equal(second, last)
        assert not torch.equal(first, second)


def gather_hybrid(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    module = shard(mesh["shard"])
    options = {"replicas": mesh["replicate"], "weights": gw.QSGD(bits=8), "min_numel": 1000}
    gw.attach(module, gw.QSGD(), **options)
    train_step(module, rank, 0)
    return gathered(module)


@pytest.mark.slow
def test_replicas_of_hsdp_compute_with_the_same_bits(worlds):
    answers = worlds[4].run(gather_hybrid)
    for got in answers[1:]:
        assert equal(got, answers[0])


def count(rank, weights):
    module = shard()
    handle = gw.attach(module, gw.QSGD(), weights=weights)
    sent, gather, send = [], dist.all_gather_single, dist.isend

    def counting_gather(out, tensor, **options):
        sent.append((dist.get_world_size() - 1) * tensor.nbytes)
        return gather(out, tensor, **options)

    def counting_send(tensor, **options):
        sent.append(tensor.nbytes)
        return send(tensor, **options)

    dist.all_gather_single, dist.isend = counting_gather, counting_send
    try:
        for step in range(3):
            train_step(module, rank, step)
    finally:
        dist.all_gather_single, dist.isend = gather, send
    return sum(sent), handle.stats()


@pytest.mark.parametrize("codec", [gw.QSGD(bits=8), gw.QSGD(bits=8, wire="zstd")], ids=str)
def test_bytes_are_counted_as_they_are_sent(worlds, codec):
    for (sent, stats), (_, plain) in zip(
        worlds[3].run(count, codec), worlds[3].run(count, gw.Identity()), strict=True
    ):
        assert stats.weight_bytes == sent
        assert 0.2 < stats.weight_bytes / plain.weight_bytes < 0.29
        assert stats.bytes_sent == plain.bytes_sent  # of gradients
        assert stats.bits_per_value < 4.5


def let_go(rank):
    """Exact are the weights after `close`, and after another `attach` that says nothing of them."""
    plain, closed, attached = shard(), shard(), shard()
    gw.attach(closed, gw.QSGD(), weights=gw.QSGD(bits=8)).close()
    gw.attach(attached, gw.QSGD(), weights=gw.QSGD(bits=8))
    gw.attach(attached, gw.QSGD())
    with pytest.raises(ValueError, match="weights have no error feedback"):
        gw.attach(plain, gw.QSGD(), weights=gw.Cast("fp16"))
    with pytest.raises(ValueError, match="`weights` is 'qsgd:bits=6' on rank 0 and 'qsgd:bits=7'"):
        gw.attach(plain, gw.QSGD(), weights=gw.QSGD(bits=6 + rank))
    return gathered(plain), gathered(closed), gathered(attached)


def test_weights_are_exact_when_no_codec_is_left(worlds):
    for plain, closed, attached in worlds[2].run(let_go):
        assert equal(plain, closed)
        assert equal(plain, attached)


def resume(rank):
    """Four steps at once, and two, a checkpoint, and two more in a new module."""
    options = {"weights": gw.QSGD(bits=4), "seed": 1}
    whole, first, second = shard(), shard(), shard()
    gw.attach(whole, gw.QSGD(), **options)
    one = gw.attach(first, gw.QSGD(), **options)
    expected = [train_step(whole, rank, step) for step in range(4)][-1]
    for step in range(2):
        train_step(first, rank, step)
    second.load_state_dict(first.state_dict())
    gw.attach(second, gw.QSGD(), **options).load_state_dict(one.state_dict())
    return expected, [train_step(second, rank, step) for step in range(2, 4)][-1]


def test_resume_is_bit_identical(worlds):
    for expected, resumed in worlds[2].run(resume):
        assert equal(expected, resumed)
