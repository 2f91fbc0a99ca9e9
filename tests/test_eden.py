"""The theorems of DRIVE and EDEN, and what a rotation by two Hadamard stages keeps of them."""

import math

import pytest
import torch
from scipy import integrate, stats

import gradwire as gw
from gradwire import kernels
from gradwire.codecs import eden
from gradwire.kernels import reference
from gradwire.kernels.formats.rotation import LEVELS, thresholds
from gradwire.kernels.reference import rotated
from laws import roundtrip

DISTORTION = {bits: 1 - 2 * sum(
    c * c * (stats.norm.cdf(b) - stats.norm.cdf(a))
    for c, a, b in zip(LEVELS[bits], [0, *thresholds(bits)], [*thresholds(bits), 99], strict=True)
) for bits in LEVELS}  # fmt: skip
"""Of the best levels: E (y - q)^2 = 1 - E q^2."""


def random(seed):
    return torch.Generator().manual_seed(seed)


def gaussian(numel, seed=0):
    return torch.randn(numel, generator=random(seed))


def student(numel):
    chi = sum(gaussian(numel, seed) ** 2 for seed in (1, 2, 3)) / 3
    return gaussian(numel) / chi.sqrt()


def spread(numel):
    """Half of the energy is in one value of forty."""
    return gaussian(numel) * 3 ** gaussian(numel, 1)


def sparse(numel):
    return gaussian(numel) * (torch.rand(numel, generator=random(4)) < 0.004)


def constant(numel):
    return torch.ones(numel)


def impulse(numel):
    """Two neighbours in every block of 1024."""
    x = torch.zeros(numel).view(-1, 1024)
    x[:, 100], x[:, 101] = 2.0, 1.0
    return x.view(-1)


def error(codec, x, draws=1):
    found = [roundtrip(codec, x, gw.Key(step=i)) for i in range(draws)]
    return float(sum((y - x).double().square().sum() for y in found)
                 / draws / x.double().square().sum())  # fmt: skip


@pytest.mark.parametrize("bits", LEVELS)
def test_levels_are_those_of_lloyd_and_max(bits):
    """Each is the mean of what is rounded to it, and the bounds between them are halfway."""
    bounds = [0, *thresholds(bits), math.inf]
    for level, low, high in zip(LEVELS[bits], bounds, bounds[1:], strict=False):
        first, _ = integrate.quad(lambda t: t * stats.norm.pdf(t), low, high)
        share, _ = integrate.quad(stats.norm.pdf, low, high)
        assert level == pytest.approx(first / share, rel=1e-9)
    known = {1: 0.36338, 2: 0.11748, 3: 0.03455, 4: 0.00950}
    assert DISTORTION[bits] == pytest.approx(known[bits], abs=1e-5)


@pytest.mark.parametrize("bits", LEVELS)
@pytest.mark.parametrize("make", [gaussian, student, spread, sparse, constant, impulse])
def test_the_error_is_that_of_a_gaussian_whatever_the_vector(bits, make):
    """D / (1 - D), eq. (2)."""
    expected = DISTORTION[bits] / (1 - DISTORTION[bits])
    measured = error(gw.EDEN(bits=bits), make(1 << 18))
    rel = 0.02 if make in (gaussian, constant) else 0.05  # few blocks have most of the energy
    assert measured == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize("bits", LEVELS)
def test_one_value_in_a_block_costs_no_more_than_others(bits):
    """On average over keys; single draws lie on a lattice, and vary."""
    x = torch.zeros(64, 1024)
    x[torch.arange(64), torch.randperm(1024, generator=random(0))[:64]] = 1.0
    expected = DISTORTION[bits] / (1 - DISTORTION[bits])
    assert error(gw.EDEN(bits=bits), x.view(-1), draws=16) < 1.1 * expected


def test_bits_and_errors_are_within_the_bars():
    x = gaussian(1 << 20)
    for bits, most_bits, most_error in ((2, 2.05, 0.135), (1, 1.05, 0.60)):
        codec = gw.EDEN(bits=bits)
        assert 8 * codec.max_nbytes(x.numel()) / x.numel() <= most_bits
        assert error(codec, x) <= most_error
        assert error(codec, student(1 << 20)) <= 1.1 * most_error


@pytest.mark.parametrize("bits", LEVELS)
@pytest.mark.parametrize("make", [gaussian, spread, sparse])
def test_the_error_is_at_right_angles_to_the_vector(bits, make):
    """<x', x> = <x, x> for every key, block by block: what the scale is for, eq. (1)."""
    x = make(1 << 14)
    for step in range(3):
        y = roundtrip(gw.EDEN(bits=bits), x, gw.Key(step=step))
        inner, square = ((a.double() * x).view(-1, 1024).sum(1) for a in (y, x))
        torch.testing.assert_close(inner, square, rtol=2e-5, atol=0)


def bias_of_two(codec, draws):
    """By how many standard errors the values of `impulse` are missed, and by how much of them."""
    x = impulse(64 * 1024)
    keys = [gw.Key(seed=5, step=i) for i in range(draws)]
    found = torch.cat([roundtrip(codec, x, key).view(-1, 1024)[:, 100:102] for key in keys])
    missed = found.double().mean(0) - torch.tensor([2.0, 1.0])
    return (missed.abs() / (found.std(0) / len(found) ** 0.5)).max(), missed[1].abs()


@pytest.mark.parametrize("bits", [1, 2])
def test_two_values_of_a_block_are_both_unbiased(bits):
    z, missed = bias_of_two(gw.EDEN(bits=bits), 40)
    assert z < 5
    assert missed < 0.02


def one_stage(values, first, turn=rotated.turn):
    """The papers' rotation: one Hadamard matrix, and signs before it."""
    return values * math.sqrt(values.shape[1] / 16) if first == 16 else turn(values, first)


def test_one_stage_would_lose_the_smaller_of_two(monkeypatch):
    monkeypatch.setattr(kernels, "for_device", lambda device: reference)
    assert bias_of_two(gw.EDEN(bits=1), 2)[1] < 0.2
    monkeypatch.setattr(rotated, "turn", one_stage)
    assert error(gw.EDEN(bits=1), gaussian(1 << 16)) == pytest.approx(0.571, abs=0.01)
    assert bias_of_two(gw.EDEN(bits=1), 2)[1] > 0.9


@pytest.mark.parametrize("bits", LEVELS)
def test_rotations_keep_lengths(bits):
    """With four bits the decoded length is that of the vector, but for the levels."""
    x = gaussian(8192)
    lengths = [roundtrip(gw.EDEN(bits=bits, block=block), x).norm() for block in (512, 1024, 4096)]
    expected = x.norm() / math.sqrt(1 - DISTORTION[bits])
    torch.testing.assert_close(torch.stack(lengths), expected.expand(3), rtol=0.02, atol=0)


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.9, 1.0])
def test_errors_of_workers_that_rotate_alike(alike):
    """Of one bit: their covariance is asin(r) - r, next to nothing unless vectors are equal."""
    numel = 1 << 18
    one = gaussian(numel)
    two = alike * one + math.sqrt(1 - alike**2) * gaussian(numel, 1)
    key, codec = gw.Key(step=3), gw.EDEN(bits=1)
    first, second = ((roundtrip(codec, x, key.of(rank=r)) - x) for r, x in enumerate((one, two)))
    covariance = float((first.double() * second).mean())
    assert covariance == pytest.approx(math.asin(alike) - alike, abs=0.01)


def share_of_the_weaker(codec, draws=30):
    """Of a mean of two by `two_shot`, how much of the smaller vector is in it; 1 is right."""
    one, two = gaussian(16384), 0.8 * gaussian(16384, 1)
    two -= one * ((one @ two) / (one @ one))
    means = [gw.simulate(codec, [one, two], gw.Key(step=i), "two_shot") for i in range(draws)]
    return float(2 * (sum(means) / draws) @ two / (two @ two))


def test_the_second_shot_has_a_rotation_of_its_own(monkeypatch):
    """In that of the first, the sign of a mean of two signs is that of the larger: one is lost."""
    assert share_of_the_weaker(gw.EDEN(bits=1)) == pytest.approx(1, abs=0.03)
    monkeypatch.setattr(eden, "_shared", lambda key: key.of(rank=0, hop=0))
    assert share_of_the_weaker(gw.EDEN(bits=1)) < 0.1


@pytest.mark.parametrize(
    ("numel", "codes"), [(0, 0), (1, 512), (512, 512), (513, 1024), (1024, 1024), (1025, 1536),
                         (1 << 20, 1 << 20)],
)  # fmt: skip
def test_only_the_last_block_is_padded(numel, codes):
    codec = gw.EDEN(bits=2, block=1024)
    assert codec.max_nbytes(numel) == 4 * -(-numel // 1024) + codes // 4


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"bits": 0}, "from 1 to 4, got 0"), ({"bits": 5}, "from 1 to 4, got 5"),
     ({"bits": True}, "from 1 to 4, got True"), ({"block": 256}, "from 512 to 4096, got 256"),
     ({"block": 1536}, "power of two"), ({"block": None}, "got None")],
)  # fmt: skip
def test_settings_that_cannot_be(settings, text):
    with pytest.raises(ValueError, match=text):
        gw.EDEN(**settings)
