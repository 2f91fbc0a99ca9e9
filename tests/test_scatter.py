"""`reduce_scatter` over real gloo workers: every owner's shard is what `simulate` says of it."""

import itertools

import pytest
import torch
import torch.distributed as dist

import gradwire as gw
from gradwire import collectives
from gradwire.link import Link
from gradwire.parts import Part
from laws import EXAMPLES
from world import data

SIZES = (2, 3, 4)
KEY = gw.Key(seed=9, step=4, tensor=5)


def buffer(rank, world, numel, seed=0):
    """A shard of `numel` values for every worker."""
    return data(rank, world * numel, seed).view(world, numel)


def parts(shards, residuals=None):
    residuals = [None] * len(shards) if residuals is None else residuals
    pairs = zip(shards, residuals, strict=True)
    return [Part(x, KEY.tensor + i, residual=r) for i, (x, r) in enumerate(pairs)]


def scatter_all(rank, specs, numels):
    link, results = Link(), {}
    for spec, numel in itertools.product(specs, numels):
        shards = parts(buffer(rank, link.size, numel))
        mean = collectives.reduce_scatter(link, gw.parse(spec), shards, KEY)
        results[spec, numel] = mean.clone()
    return results


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_every_shard_is_what_simulate_says(worlds, size):
    numels = (1, 601, 10_000)
    answers = worlds[size].run(scatter_all, EXAMPLES, numels)
    for spec, numel in itertools.product(EXAMPLES, numels):
        buffers = [buffer(rank, size, numel) for rank in range(size)]
        for owner, answer in enumerate(answers):
            key = KEY.of(tensor=KEY.tensor + owner)
            shards = [each[owner] for each in buffers]
            expected = gw.simulate(gw.parse(spec), shards, key, "all_gather")
            assert torch.equal(answer[spec, numel], expected), (spec, numel, owner)


def count_bytes(rank, spec, numel):
    link = Link()
    collectives.reduce_scatter(link, gw.parse(spec), parts(buffer(rank, link.size, numel)), KEY)
    return link.account


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spec", ["fp16", "qsgd:bits=4", "global-qsgd"])
def test_bytes_are_those_of_the_payloads_for_others(worlds, size, spec):
    payload = gw.parse(spec).max_nbytes(4096)
    for account in worlds[size].run(count_bytes, spec, 4096):
        assert account.bytes_sent == (size - 1) * payload
        assert account.message_bytes == size * payload
        assert account.values == size * 4096


def scatter_with_residual(rank, spec, steps):
    """The sum of what went in, of what came out, and what is owed at the end."""
    link, codec, world = Link(), gw.parse(spec), dist.get_world_size()
    residual, sent, got = torch.zeros(world, 3000), torch.zeros(world, 3000), torch.zeros(3000)
    for step in range(steps):
        shards = buffer(rank, world, 3000, seed=step)
        sent += shards
        key = KEY.of(step=step)
        got += collectives.reduce_scatter(link, codec, parts(shards, residual), key)
    return sent, got, residual


@pytest.mark.parametrize("spec", ["qsgd:bits=2", "qsgd:bits=4,wire=zstd", "fft", "bf16"])
@pytest.mark.parametrize("size", [2, 3])
def test_what_went_in_is_what_came_out_and_what_is_owed(worlds, spec, size):
    answers = worlds[size].run(scatter_with_residual, spec, 6)
    sent, owed = (torch.stack([a[i] for a in answers]).mean(0) for i in (0, 2))
    for owner, (_, got, _) in enumerate(answers):
        error = (sent[owner] - got - owed[owner]).norm() / sent[owner].norm()
        assert owed[owner].norm() > 0
        assert error < 1e-5
