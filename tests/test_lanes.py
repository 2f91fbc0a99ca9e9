"""Chunks and lanes: they change how fast a step is and how much memory it takes, nothing else."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.transport.executor import join
from gradwire.transport.lanes import Lanes
from gradwire.transport.link import Link
from world import data

WIDTH = 256


def gradients(rank, spec, steps, options):
    """The mean gradients of some steps of one small model, on data of the rank's own."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.3)
    handle = gw.attach(ddp, gw.parse(spec), **options)
    found = []
    for step in range(steps):
        ddp.zero_grad()
        ddp(data(rank, 8 * WIDTH, seed=step).view(8, WIDTH)).square().sum().backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in ddp.parameters()]))
    handle.close()
    return torch.stack(found), handle.stats()


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "spec",
    [
        "qsgd:bits=4",
        "qsgd:bits=2,wire=zstd",
        "dqsg",
        "ndqsg",
        "global-qsgd",
        "global-qsgd:dither=exponential",
        "fft",
    ],
)
def test_lanes_and_chunks_do_not_change_a_bit(worlds, size, spec):
    first = worlds[size].run(gradients, spec, 3, {"lanes": 1, "chunk": 10**9})[0][0]
    for options in ({}, {"lanes": 4, "chunk": 3000}):
        for got, _ in worlds[size].run(gradients, spec, 3, options):
            assert torch.equal(got, first), options


def test_error_feedback_is_the_same_through_chunks(worlds):
    options = {"error_feedback": True}
    spec = "qsgd:bits=2"
    whole = worlds[2].run(gradients, spec, 4, {"lanes": 1, "chunk": 10**9, **options})[0][0]
    for got, _ in worlds[2].run(gradients, spec, 4, {"lanes": 3, "chunk": 5000, **options}):
        assert torch.equal(got, whole)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("spec", ["none", "qsgd:bits=4", "global-qsgd", "dqsg", "fp16"])
def test_memory_is_two_buffers_each_way_and_one_residual(worlds, size, spec):
    """Of the largest bucket, as it is encoded: two to send it and two to receive it; and float32
    residuals, with room for the sum of one and a gradient. So where a bucket has several chunks."""
    bucket = 2 * (WIDTH * WIDTH + WIDTH)
    codec = gw.parse(spec)
    fed = 0 if codec.unbiased else 4 * WIDTH * WIDTH
    for _, stats in worlds[size].run(gradients, spec, 3, {"chunk": 16_384}):
        assert stats.buffer_bytes <= 4 * codec.max_nbytes(bucket) + fed
        assert stats.residual_bytes == 3 * fed


def raw_messages(rank):
    """How many sums a step with twelve buckets of one matrix and one bias makes."""
    torch.manual_seed(0)
    layers = [nn.Linear(128, 128) for _ in range(12)]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.05)
    handle = gw.attach(ddp, gw.QSGD(bits=4))
    counted = []
    with pytest.MonkeyPatch.context() as patch:
        original = Link.sum_by_owners
        patch.setattr(Link, "sum_by_owners", lambda *a: (counted.append(1), original(*a)))
        for step in range(3):
            counted.append(0)
            ddp(data(rank, 8 * 128, seed=step).view(8, 128)).square().sum().backward()
    handle.close()
    return "".join(map(str, counted))


def test_small_parameters_of_all_buckets_share_a_message(worlds):
    assert worlds[2].run(raw_messages) == ["010101"] * 2


def fail_in_a_lane(rank):
    """A job that fails, one on another lane that waits for its turn, and one behind the first."""
    lanes = Lanes([Link(dist.new_group()), Link(dist.new_group())])

    def broken(link):
        raise ArithmeticError("the codec is broken")

    def in_turn(link):
        with link.in_turn():
            return 1

    futures = [lanes.submit(job) for job in (broken, in_turn, lambda link: 2)]
    words = [said_by(join(futures[:1], list).wait), said_by(join(futures[2:], list).wait)]
    lanes.close()
    return [*words, said_by(lambda: lanes.submit(broken))]


def said_by(call):
    with pytest.raises(Exception, match=r".") as caught:
        call()
    return str(caught.value)


def test_a_failed_job_is_raised_with_its_words_and_stops_its_lane(worlds):
    for first, later, closed in worlds[2].run(fail_in_a_lane):
        assert "the codec is broken" in first
        assert "the codec is broken" in later
        assert "handle is closed" in closed


def attach_with(rank, options):
    ddp = DistributedDataParallel(nn.Linear(128, 128))
    with pytest.raises(ValueError, match="`lanes` and `chunk` must be at least 1"):
        gw.attach(ddp, gw.QSGD(), **options)


@pytest.mark.parametrize("options", [{"lanes": 0}, {"chunk": 0}])
def test_lanes_and_chunks_must_be_some(worlds, options):
    worlds[2].run(attach_with, options)
