"""THC: the law of its error, no bias from what is clipped, and one sum for owners and networks."""

import math

import pytest
import torch
from scipy import optimize, special, stats

import gradwire as gw
from gradwire.codecs import thc
from gradwire.codecs.thc import REACH, adder, gain
from gradwire.kernels import cpu
from gradwire.kernels.formats.rotation import padded_numel
from laws import roundtrip


def random(seed):
    return torch.Generator().manual_seed(seed)


def gaussian(numel, seed=0):
    return torch.randn(numel, generator=random(seed))


def student(numel, seed=0):
    chi = sum(gaussian(numel, seed + i) ** 2 for i in (1, 2, 3)) / 3
    return gaussian(numel, seed) / chi.sqrt()


def sparse(numel, seed=0):
    return gaussian(numel, seed) * (torch.rand(numel, generator=random(seed + 9)) < 0.004)


def within(s):
    return special.erf(s / math.sqrt(2))


def true_gain(reach):
    """f of eq. (3), by bisection."""
    s = optimize.brentq(lambda s: s - reach * within(s), 0.1, reach)
    return reach / s


def error_of(bits, reach):
    """What is clipped and the dither: the two parts of eq. (4), for a grid that ends at `reach`."""
    f = true_gain(reach)
    s = reach / f
    kept = f**2 * (within(s) - 2 * s * stats.norm.pdf(s))
    return kept + reach**2 * (1 - within(s)) - 1, reach**2 / (3 * (2**bits - 1) ** 2)


def relative(y, x):
    return float((y - x).double().square().sum() / x.double().square().sum())


def slope(codec, vectors, rank, draws):
    """How much of the vector of a rank is in the mean: 1 if nothing biases; its standard error."""
    x = vectors[rank].double()
    found = torch.tensor([
        float(x @ (gw.simulate(codec, vectors, gw.Key(seed=8, step=i)).double() * len(vectors)))
        for i in range(draws)
    ]) / float(x @ x)  # fmt: skip
    return float(found.mean()), float(found.std() / math.sqrt(draws))


def orthogonal(numel, sizes):
    """Vectors of these lengths with nothing in common, whatever block is looked at."""
    rows = torch.randn(numel // 1024, 1024, len(sizes), generator=random(3))
    rows = torch.linalg.qr(rows).Q * 32 * torch.tensor(sizes)
    return list(rows.permute(2, 0, 1).reshape(len(sizes), -1).contiguous())


# Errors.


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("make", [gaussian, student, sparse])
def test_the_error_of_a_payload_is_that_of_a_gaussian(bits, make):
    """Eq. (4), whatever the vector; sums of few values are never as large as Gaussian ones."""
    x = make(1 << 17)
    y = roundtrip(gw.THC(bits=bits), x, gw.Key(step=3))
    rel = 0.1 if make is sparse else 0.05
    assert relative(y, x) == pytest.approx(sum(error_of(bits, REACH[bits])), rel=rel)


def test_errors_are_those_of_the_page():
    found = [round(sum(error_of(bits, REACH[bits])), 4) for bits in (1, 2, 3, 4)]
    assert found == [0.798, 0.1481, 0.0401, 0.0118]


@pytest.mark.parametrize("bits", REACH)
def test_no_other_reach_has_less_error(bits):
    least = sum(error_of(bits, REACH[bits]))
    assert all(sum(error_of(bits, REACH[bits] + d)) >= least for d in (-0.02, 0.02))


@pytest.mark.parametrize("workers", [2, 4])
def test_the_dither_of_equal_vectors_cancels(workers):
    """The mean of n has 1 / n^2 of its error, and all of what is clipped."""
    x = gaussian(1 << 16)
    mean = gw.simulate(gw.THC(bits=2), [x] * workers, gw.Key(step=1))
    clipped, dithered = error_of(2, REACH[2])
    assert relative(mean, x) == pytest.approx(clipped + dithered / workers**2, rel=0.05)


def test_the_error_of_a_mean_of_independent_vectors():
    vectors = [gaussian(1 << 16, seed) for seed in range(4)]
    mean = torch.stack(vectors).mean(0)
    found = relative(gw.simulate(gw.THC(bits=4), vectors, gw.Key()), mean)
    assert found == pytest.approx(sum(error_of(4, REACH[4])), rel=0.06)


# Bias.


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_worker_is_in_the_mean_with_its_own_length(bits, rank):
    vectors = orthogonal(1 << 13, [1.0, 0.6, 0.05])
    found, spread = slope(gw.THC(bits=bits), vectors, rank, 24)
    assert abs(found - 1) < 5 * spread


def same_for_all(own, agreed, reach):
    return torch.full_like(agreed, gain.gain(reach))


@pytest.mark.parametrize(
    ("rank", "broken"), [(0, lambda own, agreed, reach: torch.ones_like(agreed)), (1, same_for_all)]
)
def test_the_test_of_bias_rejects_other_gains(monkeypatch, rank, broken):
    """None at all, and that of the longest vector for all."""
    monkeypatch.setattr(adder, "gains", broken)
    found, spread = slope(gw.THC(bits=2), orthogonal(1 << 13, [1.0, 0.6, 0.05]), rank, 24)
    assert abs(found - 1) > 8 * spread


def test_two_values_of_a_block_are_both_unbiased():
    x = torch.zeros(32, 1024)
    x[:, 100], x[:, 101] = 2.0, 1.0
    draws = [roundtrip(gw.THC(bits=2), x.view(-1), gw.Key(step=i)) for i in range(40)]
    found = torch.cat([y.view(32, 1024)[:, 100:102] for y in draws]).double()
    missed = found.mean(0) - torch.tensor([2.0, 1.0])
    assert (missed.abs() < 5 * found.std(0) / len(found) ** 0.5).all()


@pytest.mark.parametrize("reach", [1.38, 1.74, 2.55, 6.0])
def test_gains_solve_their_equation(reach):
    assert gain.gain(reach) == pytest.approx(true_gain(reach), rel=1e-12)
    shares = torch.linspace(0.01, 1, 500)
    found = gain.gains(shares, torch.ones(500), reach)
    expected = [true_gain(reach / s) for s in shares.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=3e-4, atol=0)


def test_gains_of_what_is_not_finite():
    own = torch.tensor([torch.nan, 1.0, 2.0])
    found = gain.gains(own, torch.tensor([torch.nan, torch.nan, 1.0]), 2.0)
    assert found.tolist() == [1.0, 1.0, float(torch.tensor(gain.gain(2.0)))]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_share_that_is_clipped(bits):
    """1 - P(s), of what is raised; the codes there are the first and the last."""
    codec, x, key = gw.THC(bits=bits), gaussian(1 << 16), gw.Key(step=2)
    y = torch.empty(len(x))
    cpu.rotate_blocks(x, y, block=1024, key=adder.turn_of(key, 1))
    ends = codec.statistics(x).repeat_interleave(1024)
    f = gain.gain(codec.reach)
    share = float((f * y.abs() > ends).float().mean())
    assert share == pytest.approx(1 - within(codec.reach / f), rel=0.05)


# Sums.


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_owners_and_networks_have_one_mean(bits):
    vectors = [student(5003, seed) for seed in (0, 20, 40)]
    means = [gw.simulate(gw.THC(bits=bits), vectors, gw.Key(step=1), way)
             for way in ("code_reduce", "all_reduce")]  # fmt: skip
    assert torch.equal(*means)


def test_extremes_of_many_workers_fit_their_sum():
    """All codes are the largest: neither total nor field runs over."""
    for bits, world in ((1, 3), (4, 17), (8, 64)):
        codec, x = gw.THC(bits=bits), torch.zeros(1024)
        x[0] = 1.0
        shared = codec.statistics(x) * 1e-3  # a grid that all values are beyond
        for make in (codec.adder, codec.network_adder):
            sums, mean = make(world, shared), torch.empty(1024)
            codes = torch.empty(world, sums.code_nbytes(1024), dtype=torch.uint8)
            for rank, code in enumerate(codes):
                sums.encode(x, code, gw.Key(rank=rank))
            total = torch.empty(sums.total_nbytes(1024), dtype=torch.uint8)
            sums.add(codes, total, 1024, gw.Key())
            sums.decode(total, mean, gw.Key())
            cosine = (mean @ x) / mean.norm()
            assert cosine > 0.7  # signs alone are left: sqrt(2 / pi)


def test_all_rotate_alike_and_by_other_bits_than_the_dither():
    keys = [gw.Key(seed=1, rank=rank, hop=1) for rank in range(3)]
    assert len({adder.turn_of(key, 3) for key in keys}) == 1
    assert len({adder.turn_of(key, 1) for key in keys}) == 3
    assert not {adder.turn_of(key, n) for key in keys for n in (1, 3)} & {*keys, keys[0].of(rank=0)}
    assert adder.turn_of(keys[0], 3) != adder.turn_of(keys[0].of(hop=0), 3)


@pytest.mark.parametrize("make", [gw.THC.adder, gw.THC.network_adder])
def test_pieces_are_those_of_the_whole(monkeypatch, make):
    """Rotated a few blocks at a time, into codes and back."""
    codec, vectors = gw.THC(bits=3, block=512), [gaussian(5003, seed) for seed in range(2)]
    shared = torch.maximum(*(codec.statistics(x) for x in vectors))
    found = []
    for size in (1 << 18, 1024):
        monkeypatch.setitem(adder._PIECES, "cpu", size)
        assert torch.equal(torch.maximum(*(codec.statistics(x) for x in vectors)), shared)
        sums, key = make(codec, 2, shared), gw.Key(step=1, rank=1)
        code, said = torch.zeros(sums.code_nbytes(5003), dtype=torch.uint8), gaussian(5003, 7)
        sums.encode(vectors[1], code, key, 1024)
        sums.subtract(code, said, key, 1024)
        found += [code, said, codec.encode(vectors[0], key)]
    assert all(torch.equal(a, b) for a, b in zip(found[:3], found[3:], strict=True))
    assert relative(gaussian(5003, 7) - found[1], vectors[1]) < 0.06


# Forms.


def test_rotations_keep_lengths_and_come_back():
    for numel, block in ((1, 512), (700, 1024), (5003, 4096), (8192, 2048)):
        x, key, back = gaussian(numel), gw.Key(seed=numel), gaussian(numel, 1)
        y, base = torch.empty(padded_numel(numel, block)), gaussian(numel, 1)
        cpu.rotate_blocks(x, y, block=block, key=key, offset=block)
        assert float(y.norm()) == pytest.approx(float(x.norm()) / 64, rel=1e-5)
        cpu.rotate_blocks_back(y, back, block=block, key=key, offset=block, accumulate=True)
        torch.testing.assert_close(back - base, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("numel", "codes"), [(0, 0), (1, 512), (512, 512), (513, 1024), (1025, 1536), (4096, 4096)]
)
def test_only_the_last_block_is_padded(numel, codes):
    assert gw.THC(bits=2).max_nbytes(numel) == 4 * -(-numel // 1024) + codes // 4
    sums = gw.THC(bits=2).adder(4)
    assert (sums.code_nbytes(numel), sums.total_nbytes(numel)) == (codes // 4, codes // 2)


def test_a_padded_block_has_a_grid_of_its_own():
    """Its values are spread over fewer, 512, of which 300 have their share of the error."""
    x = gaussian(512 * 9)[: 4096 + 300]
    draws = [roundtrip(gw.THC(bits=4, block=4096), x, gw.Key(step=i)) for i in range(20)]
    errors = [relative(y[4096:], x[4096:]) for y in draws]
    assert sum(errors) / 20 == pytest.approx(sum(error_of(4, REACH[4])) * 300 / 512, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"bits": 0}, "from 1 to 8, got 0"), ({"bits": 9}, "from 1 to 8, got 9"),
     ({"bits": True}, "got True"), ({"block": 256}, "from 512 to 4096, got 256"),
     ({"block": None}, "got None")],
)  # fmt: skip
def test_settings_that_cannot_be(settings, text):
    with pytest.raises(ValueError, match=text):
        gw.THC(**settings)


def test_too_many_workers_are_told():
    with pytest.raises(ValueError, match=r"a sum of 300 codes of 127\.5 levels takes 17 bits"):
        thc.THC(bits=8).adder(300)
