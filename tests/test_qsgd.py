"""The lemmas of the QSGD paper, and what its codes cost."""

import math

import pytest
import torch

import gradwire as gw
from gradwire.kernels import cpu
from gradwire.kernels.formats.layout import packed_nbytes
from laws import roundtrip


def gaussian(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def laplace(numel, seed=0):
    u = torch.rand(numel, generator=torch.Generator().manual_seed(seed)) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs())


def scales_of(codec, x):
    """The scale of every value."""
    blocks = x.split(codec.block or x.numel())
    order = float("inf") if codec.norm == "max" else 2
    norms = torch.stack([block.double().norm(order) for block in blocks])
    return norms.repeat_interleave(codec.block or x.numel())[: x.numel()]


def exact_error(codec, x):
    """E |Q(x) - x|^2 = sum of (scale / s)^2 p (1 - p): eq. (2)."""
    unit = scales_of(codec, x) / codec.num_levels
    p = (x.double().abs() / unit) % 1
    return (unit**2 * p * (1 - p)).sum()


@pytest.mark.parametrize("make", [gaussian, laplace])
@pytest.mark.parametrize(
    "spec",
    [
        "qsgd:bits=2,block=128",
        "qsgd:bits=4",
        "qsgd:bits=8",
        "qsgd:levels=5",
        "qsgd:bits=4,norm=l2",
        "qsgd:bits=2,norm=l2,block=64",
        "qsgd:bits=8,norm=l2,block=4096",
        "qsgd:bits=3,block=none",
    ],
)
def test_mean_squared_error_is_the_exact_formula(spec, make):
    codec, x = gw.parse(spec), make(400_000)
    draws = [roundtrip(codec, x, gw.Key(step=i)).double() for i in range(4)]
    measured = sum((y - x).square().sum() for y in draws) / len(draws)
    assert measured / exact_error(codec, x) == pytest.approx(1, rel=0.02)


def test_the_exact_formula_is_that_of_a_second_derivation():
    """Enumerate both outcomes of every value instead of p (1 - p)."""
    codec, x = gw.QSGD(bits=3, block=64), gaussian(640)
    unit = scales_of(codec, x) / codec.num_levels
    low = torch.floor(x.double() / unit) * unit
    up = (x.double() - low) / unit
    error = (1 - up) * (low - x).square() + up * (low + unit - x).square()
    assert float(error.sum()) == pytest.approx(float(exact_error(codec, x)), rel=1e-6)


@pytest.mark.parametrize("levels", [1, 2, 7, 31, 127])
@pytest.mark.parametrize("block", [64, 512, 8192])
def test_error_and_nonzeros_are_below_the_bounds(levels, block):
    codec, x = gw.QSGD(levels=levels, norm="l2", block=block), gaussian(65_536)
    y = roundtrip(codec, x).double()
    bound = min(block / levels**2, math.sqrt(block) / levels)  # eq. (3)
    assert (y - x).square().sum() < bound * x.double().square().sum()
    assert exact_error(codec, x) < bound * x.double().square().sum()
    nonzeros = (y != 0).sum() / (x.numel() / block)
    assert nonzeros < levels * (levels + math.sqrt(block))  # eq. (4)


def test_one_level_keeps_l1_over_l2_values():
    codec, x = gw.QSGD(levels=1, norm="l2", block=None), gaussian(65_536)
    counts = [(roundtrip(codec, x, gw.Key(step=i)) != 0).sum() for i in range(50)]
    expected = x.norm(1) / x.norm(2)
    spread = math.sqrt(expected / len(counts))
    assert abs(sum(counts) / len(counts) - expected) < 5 * spread


def test_every_error_is_below_one_step():
    for spec in ("qsgd:bits=4", "qsgd:bits=2,norm=l2,block=64"):
        codec, x = gw.parse(spec), laplace(100_000)
        step = scales_of(codec, x) / codec.num_levels
        assert ((roundtrip(codec, x) - x).abs() <= step * (1 + 1e-5)).all()


def codes_of(levels, x, block=None, norm="l2"):
    """One code a byte, and how many bits the two Elias codes take."""
    codes = torch.empty(packed_nbytes(x.numel(), 8), dtype=torch.uint8)
    scales = torch.empty(-(-x.numel() // (block or x.numel())))
    cpu.quantize(
        x, scales, codes, levels=levels, width=8, block=block, norm=norm, key=gw.Key(seed=levels)
    )
    return codes[: x.numel()]


@pytest.mark.parametrize("levels", [2, 4, 16])
def test_sparse_code_is_shorter_than_the_bound(levels):
    """Theorem 3.2 with o(1) = 0; 32 bits are the norm's."""
    n = 65_536
    _, sparse, _ = cpu.elias_sizes(codes_of(levels, gaussian(n)), levels=levels)
    most = levels * (levels + math.sqrt(n))
    bound = (3 + 1.5 * math.log2(2 * (levels**2 + n) / most)) * most + 32
    assert sparse + 32 < bound


def entropy(codes):
    p = torch.bincount(codes.long()).double() / codes.numel()
    return float(-(p[p > 0] * p[p > 0].log2()).sum())


@pytest.mark.parametrize("make", [gaussian, laplace])
def test_the_dense_claim_holds_for_an_entropy_coder_only(make):
    """2.8 n + 32 bits at s = sqrt(n): below it is the entropy, above it real Elias codes."""
    n, levels = 16_129, 127
    codes = codes_of(levels, make(n))
    _, _, dense = cpu.elias_sizes(codes, levels=levels)
    assert n * entropy(codes) + 32 < 2.8 * n + 32
    if make is gaussian:
        assert dense + 32 > 2.8 * n + 32


def test_elias_takes_the_shorter_code():
    key = gw.Key()
    sparse = gw.QSGD(levels=1, norm="l2", block=None, wire="elias").encode(gaussian(65_536), key)
    dense = gw.QSGD(bits=8, wire="elias").encode(gaussian(65_536), key)
    assert int(sparse[:8].view(torch.int64)) > 0
    assert int(dense[:8].view(torch.int64)) == 0
    assert 8 * sparse.numel() < 4_270 + 64  # papers' bound for s = 1, and our header


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_no_payload_is_longer_than_its_bound(bits):
    """Where every code takes the most bits that Elias has, and where zstd finds nothing."""
    extremes, noise = gaussian(5000).sign(), 2 * torch.rand(4_000_000, generator=_generator()) - 1
    elias, zstd = (gw.QSGD(bits=bits, wire=wire) for wire in ("elias", "zstd"))
    assert torch.equal(roundtrip(elias, extremes), extremes)
    assert (roundtrip(zstd, noise) - noise).abs().max() <= 1.001 / zstd.num_levels


def _generator():
    return torch.Generator().manual_seed(0)


def test_bits_on_the_wire():
    """Packed is 4 bits and a scale; zstd lands within 4 % of the order-0 entropy."""
    n = 4_000_000
    x = gaussian(n)
    packed = 8 * gw.QSGD(bits=4).encode(x, gw.Key()).numel() / n
    zstd = 8 * gw.QSGD(bits=4, wire="zstd").encode(x, gw.Key()).numel() / n
    ideal = entropy(codes_of(7, x, block=512, norm="max"))
    assert packed <= 4.07
    assert zstd <= 3.30
    assert zstd - 32 / 512 <= 1.04 * ideal


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"bits": 1}, "`bits` must be an integer from 2 to 8, got 1"),
        ({"bits": 9}, "got 9"),
        ({"levels": 0}, "`levels` must be an integer from 1 to 127, got 0"),
        ({"levels": 128}, "got 128"),
        ({"bits": 2, "levels": 7}, "needs 4 bits, got `bits=2`; give one of the two"),
        ({"norm": "l1"}, '`norm` must be "max" or "l2", got \'l1\''),
        ({"block": 100}, "`block` must be a power of two from 8 to 512, .* got 100"),
        ({"block": 4}, "got 4"),
        ({"block": 700}, "got 700"),
        ({"wire": "gzip"}, '"packed", "huffman", "elias" or "zstd", got \'gzip\''),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        gw.QSGD(**settings)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("qsdg:bits=4", "no codec is called 'qsdg'.*Did you mean 'qsgd'"),
        ("qsgd:bit=4", "'bit=4' .* is not a setting of qsgd.* settings are bits, levels"),
        ("qsgd:bits", "write `setting=value`"),
        ("qsgd:bits=four", "`bits` must be an integer from 2 to 8, got 'four'"),
        ("fp16:bits=4", "settings are none"),
        ("", "no codec is called ''"),
    ],
)
def test_bad_specs_are_refused(spec, match):
    with pytest.raises(ValueError, match=match):
        gw.parse(spec)


def test_levels_and_bits_name_the_same_codec():
    assert gw.QSGD(levels=7) == gw.QSGD(bits=4) == gw.parse("qsgd")
    assert gw.QSGD(levels=5).bits == 4
