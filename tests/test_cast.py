"""Casts to 16 bits: what owners of shards add, and how they round the mean once more."""

import pytest
import torch

import gradwire as gw
from gradwire import kernels
from gradwire.kernels import reference
from gradwire.kernels.reference import tiles as reference_tiles

KEY = gw.Key(seed=2, step=3, tensor=4)
BOUNDS = {"fp16": 2.0**-11, "bf16": 2.0**-8}
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def values(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def sum_in_16_bits(vectors, dtype):
    """The broken twin: a network that adds what each worker has rounded."""
    total = torch.zeros_like(vectors[0], dtype=dtype)
    for x in vectors:
        total += (x / len(vectors)).to(dtype)
    return total.float()


@pytest.mark.parametrize("spec", BOUNDS)
@pytest.mark.parametrize("world", [8, 64])
def test_the_bias_is_within_its_bound(spec, world):
    """The mean over 200 random streams; the allowance is five standard errors."""
    vectors = [1 + values(400, seed=rank).abs() for rank in range(world)]
    true = torch.stack(vectors).double().mean(0)
    codec, draws = gw.parse(spec), 200
    means = [gw.simulate(codec, vectors, KEY.of(step=step)) for step in range(draws)]
    found = torch.stack(means).double()
    slack = 5 * found.std(0) / draws**0.5
    assert ((found.mean(0) - true).abs() <= BOUNDS[spec] * true + slack).all()
    broken = (sum_in_16_bits(vectors, DTYPES[spec]).double() - true).abs() / true
    assert broken.max() > 2 * BOUNDS[spec]


def test_what_is_small_beside_the_sum_arrives():
    """Gradients of 1 and 2^-10 in bfloat16, whose sum has 8 bits: in 500 steps, 500 (1 + 2^-10)."""
    one, small, none = torch.ones(64), torch.full((64,), 2.0**-10), torch.zeros(64)
    vectors = [one, small, none, none]
    steps = [gw.simulate(gw.Cast("bf16"), vectors, KEY.of(step=step)) for step in range(500)]
    arrived = 4 * torch.stack(steps).double().sum(0).mean() - 500
    assert arrived == pytest.approx(500 * 2.0**-10, abs=5 * 0.058 / 8)  # 0.058: one value's
    assert torch.equal(sum_in_16_bits(vectors, torch.bfloat16), torch.full((64,), 0.25))
    assert torch.equal(gw.simulate(gw.Cast("bf16"), [one, small], KEY), (one + small) / 2)


def exact_in(spec, scale, count=3):
    """Vectors that the first rounding leaves as they are."""
    return [(scale * values(600, seed=i)).to(DTYPES[spec]).float() for i in range(count)]


def bias_z(spec, scale, draws):
    """By how many standard errors the mean over keys misses, in sums over twenty values."""
    vectors, codec = exact_in(spec, scale), gw.parse(spec)
    true = torch.stack(vectors).double().mean(0)
    got = torch.stack([gw.simulate(codec, vectors, KEY.of(step=i)) for i in range(draws)])
    error = (got.double() - true) / scale
    groups = torch.stack((error, error * true.sign())).view(2, draws, -1, 20).sum(3)
    allowed = 20 * 2.0**-22  # the mean is rounded to float32 first, which may be subnormal too
    excess = (groups.mean(1).abs() - allowed).clamp_min(0)
    return (excess / (groups.std(1) / draws**0.5).clamp_min(1e-30)).max()


SCALES = [("fp16", 1.0), ("fp16", 1e-5), ("bf16", 1.0), ("bf16", 1e-38)]
"""Of normal values and of subnormal ones."""


@pytest.mark.parametrize(("spec", "scale"), SCALES)
def test_the_second_rounding_is_unbiased(spec, scale):
    assert bias_z(spec, scale, 1000) < 5


@pytest.mark.parametrize(("spec", "scale"), SCALES)
def test_the_test_of_bias_rejects_a_truncating_twin(spec, scale, monkeypatch):
    monkeypatch.setattr(kernels, "for_device", lambda device: reference)
    monkeypatch.setattr(
        reference_tiles, "half_words", lambda c, rows, size, k: torch.zeros(rows, size).long()
    )
    assert bias_z(spec, scale, 20) > 5


@pytest.mark.parametrize(("spec", "scale"), SCALES)
def test_the_second_rounding_gives_a_neighbour_and_leaves_what_fits(spec, scale):
    vectors, codec = exact_in(spec, scale), gw.parse(spec)
    got = gw.simulate(codec, vectors, KEY).to(DTYPES[spec])
    mean = torch.stack(vectors).double().mean(0).float()
    near = mean.to(DTYPES[spec])
    end = torch.full_like(near, torch.inf)
    below = torch.where(near.float() > mean, torch.nextafter(near, -end), near)
    above = torch.where(near.float() < mean, torch.nextafter(near, end), near)
    assert ((got == below) | (got == above)).all()
    assert (got != near).any()
    assert torch.equal(gw.simulate(codec, [vectors[0]] * 3, KEY), vectors[0])


@pytest.mark.parametrize("spec", BOUNDS)
def test_no_sum_overflows_before_the_mean_and_what_is_not_finite_passes(spec):
    top = torch.finfo(DTYPES[spec]).max
    x = torch.tensor([top, -top, torch.inf, -torch.inf, torch.nan, 1.0])
    for world in (2, 3, 64):
        mean = gw.simulate(gw.parse(spec), [x] * world, KEY)
        assert torch.equal(mean[[0, 1, 2, 3, 5]], x[[0, 1, 2, 3, 5]])
        assert mean[4].isnan()


def test_pieces_of_a_vector_are_rounded_as_the_whole():
    codec, vectors = gw.Cast("fp16"), [values(5000, seed=i) for i in range(3)]
    adder = codec.adder(3)
    whole = gw.simulate(codec, vectors, KEY)
    codes = torch.stack([codec.encode(x, KEY) for x in vectors])
    for start in range(0, 5000, 3 * codec.grain):
        stop = min(start + 3 * codec.grain, 5000)
        total = torch.empty(adder.total_nbytes(stop - start), dtype=torch.uint8)
        part = codes[:, 2 * start : 2 * stop]
        adder.add(part, total, stop - start, KEY, start)
        assert torch.equal(total.view(torch.float16).float(), whole[start:stop])
