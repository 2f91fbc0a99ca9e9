"""The laws of Global-QSGD: sums that cannot overflow, its exact errors, and our dithers."""

import itertools
import math

import pytest
import torch
import torch.distributed as dist

import gradwire as gw
from gradwire.codecs import uniform
from gradwire.kernels import cpu
from gradwire.kernels.formats import fields
from gradwire.kernels.reference import tiles as reference_tiles
from gradwire.kernels.reference.pack import pack_codes, unpack_codes
from laws import reduce_now, said
from world import data

WORLDS = [2, 3, 4, 7, 8]
DITHERS = ["linear", "subtractive"]
KEY = gw.Key(seed=2, step=3, tensor=4)


def gaussian(world, numel, seed=0, correlation=0.0):
    """A vector for each worker: a common part and one of its own."""
    rows = torch.stack([data(rank, numel, seed) for rank in range(world)])
    common = data(world, numel, seed + 1)
    return list(math.sqrt(correlation) * common + math.sqrt(1 - correlation) * rows)


def errors(codec, vectors, draws, seed=0):
    """The error of the mean in each of many draws, in float64: (draws, values)."""
    mean = torch.stack(vectors).double().mean(0)
    keys = [gw.Key(seed=seed, step=i) for i in range(draws)]
    return torch.stack([gw.simulate(codec, vectors, key).double() - mean for key in keys])


# Fields.


def test_fields_are_just_wide_enough():
    for levels, terms in itertools.product((1, 3, 7, 127), (1, 2, 3, 4, 7, 8, 64, 1024)):
        width = fields.field_width(levels, terms)
        assert 2 ** (width - 1) <= 2 * levels * terms < 2**width
    most = (2**32 - 1) // 254
    assert fields.field_width(127, most) == 32
    with pytest.raises(ValueError, match="takes 33 bits and a word has 32; use fewer levels, or"):
        gw.GlobalQSGD(bits=8).network_adder(most + 1)


def extremes(world, numel):
    """Every worker at plus or minus the maximum, all alike, and two that differ at the end."""
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]).repeat(-(-numel // 5))[:numel]
    return [3.0 * signs.clone() for _ in range(world)]


def check_extremes(codec, world, collective):
    """Linear sums are exact here; a subtractive one is within half a step of the mean's."""
    vectors = extremes(world, 1100)
    got = gw.simulate(codec, vectors, KEY, collective)
    allowed = 1e-6 if codec.dither == "linear" else 0.5 / codec.num_levels + 1e-6
    return bool(((got - vectors[0]).abs() <= 3.0 * allowed).all())


@pytest.mark.parametrize("world", [2, 3, 4, 7, 8, 64, 1024])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dither", DITHERS)
@pytest.mark.parametrize("collective", ["all_reduce", "code_reduce"])
def test_nothing_overflows_with_every_worker_at_its_extreme(
    world, bits, dither, collective, monkeypatch
):
    codec = gw.GlobalQSGD(bits=bits, dither=dither)
    if collective == "code_reduce" and fields.field_width(codec.num_levels, world) > 16:
        with pytest.raises(ValueError, match="more than 16; use fewer levels, or `collective="):
            check_extremes(codec, world, collective)
        return
    assert check_extremes(codec, world, collective)
    true_width = fields.field_width
    monkeypatch.setattr(
        uniform, "field_width", lambda s, n: true_width(s, n) - (n > 1 or world == 1)
    )
    assert not check_extremes(codec, world, collective), "a sum of one bit less must fail"


def reduce_extremes(rank, dither):
    results = []
    for bits in (2, 4, 8):
        x = extremes(dist.get_world_size(), 40_000)[rank]
        results.append(gw.all_reduce(x.clone(), gw.GlobalQSGD(bits=bits, dither=dither)) - x)
    return results


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dither", DITHERS)
def test_nothing_overflows_over_gloo(worlds, size, dither):
    for answer in worlds[size].run(reduce_extremes, dither):
        for bits, error in zip((2, 4, 8), answer, strict=True):
            step = 3.0 / (2 ** (bits - 1) - 1)
            assert error.abs().max() <= (1e-5 if dither == "linear" else step / 2 + 1e-5)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dither", DITHERS)
def test_the_network_and_the_owners_give_the_same_bits(world, dither):
    for bits, numel in itertools.product((2, 4, 8), (1, 513, 5003)):
        codec, vectors = gw.GlobalQSGD(bits=bits, dither=dither), gaussian(world, numel)
        by_network = gw.simulate(codec, vectors, KEY, "all_reduce")
        assert torch.equal(by_network, gw.simulate(codec, vectors, KEY, "code_reduce"))


# The mean.


def mean_z(codec, vectors, draws):
    """By how many standard errors the average over draws misses the mean, in directions of 20
    values, plain and along the sign; less the 2^-15 that 16 random bits allow."""
    error = errors(codec, vectors, draws)
    sign = torch.stack(vectors).mean(0).sign()
    groups = torch.stack((error, error * sign)).view(2, draws, -1, 20).sum(3)
    allowed = 20 * torch.stack(vectors).abs().max() * 2.0**-15
    excess = (groups.mean(1).abs() - allowed).clamp_min(0)
    return float((excess / (groups.std(1) / draws**0.5).clamp_min(1e-30)).max())


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("dither", DITHERS)
def test_four_bits_are_unbiased_in_any_world(world, dither):
    """The authors' own 4-bit sum is right for four workers only."""
    vectors = gaussian(world, 600, correlation=0.5)
    assert mean_z(gw.GlobalQSGD(bits=4, dither=dither), vectors, 600) < 5


def test_sums_that_saturate_are_seen_to_be_biased(monkeypatch):
    """The authors' 4-bit code clamps sums at 15: this is what the test above is there to catch."""
    true_decode = cpu.dequantize_sum

    def clamped(scales, total, out, *, width, **how):
        middle = how["terms"] * how["levels"]
        sums = unpack_codes(total, out.numel(), width).clamp(middle - 7, middle + 7)
        saturated = torch.empty_like(total)
        pack_codes(sums, saturated, width)
        true_decode(scales, saturated, out, width=width, **how)

    vectors = gaussian(8, 600, correlation=0.5)
    monkeypatch.setattr(cpu, "dequantize_sum", clamped)
    assert mean_z(gw.GlobalQSGD(bits=4), vectors, 100) > 5


@pytest.mark.parametrize("norm", ["max", "l2", "l2-max", "max-l2"])
@pytest.mark.parametrize("poison", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dither", DITHERS)
def test_one_worker_spoils_its_block_for_all_and_no_more(norm, poison, dither):
    vectors = gaussian(3, 3000)
    vectors[1][1030] = poison
    got = gw.simulate(gw.GlobalQSGD(norm=norm, dither=dither), vectors, KEY)
    assert got[1024:1536].isnan().all()
    assert got[:1024].isfinite().all()
    assert got[1536:].isfinite().all()


@pytest.mark.parametrize("norm", ["max", "l2"])
@pytest.mark.parametrize("dither", DITHERS)
def test_zero_blocks_stay_zeros(norm, dither):
    vectors = gaussian(3, 3000)
    for x in vectors:
        x[512:1024] = 0
    got = gw.simulate(gw.GlobalQSGD(norm=norm, dither=dither), vectors, KEY)
    assert (got[512:1024] == 0).all()
    assert (got[1024:] != 0).any()


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e15])
@pytest.mark.parametrize("dither", DITHERS)
def test_any_magnitude(scale, dither):
    vectors = [x * scale for x in gaussian(3, 3000)]
    mean = torch.stack(vectors).mean(0)
    got = gw.simulate(gw.GlobalQSGD(bits=8, dither=dither), vectors, KEY)
    assert (got - mean).abs().max() < 0.04 * scale
    l2 = gw.simulate(gw.GlobalQSGD(bits=8, norm="l2", dither=dither), vectors, KEY)
    assert (l2 - mean).abs().max() < max(scale, 2.0**-60)


# Errors: the laws of the paper.


def scales_of(codec, vectors):
    """The common scale of every value: eq. (1)."""
    orders = {"max": math.inf, "l2": 2.0}
    names = codec.norm.split("-") if "-" in codec.norm else (codec.norm, codec.norm)
    q, p = (orders[name] for name in names)
    size = codec.block or vectors[0].numel()
    rows = [torch.stack([b.double().norm(q) for b in x.split(size)]) for x in vectors]
    norms = torch.stack(rows).norm(p, dim=0)
    return norms.repeat_interleave(size)[: vectors[0].numel()]


def steps_of(codec, vectors):
    return scales_of(codec, vectors) / codec.num_levels


def linear_error(codec, vectors):
    """E |G(x) - mean|^2 of every value: eq. (3)."""
    step = steps_of(codec, vectors)
    p = (torch.stack(vectors).double().abs() / step) % 1
    return (step / len(vectors)).square() * (p * (1 - p)).sum(0)


@pytest.mark.parametrize("norm", ["max", "l2", "l2-max", "max-l2"])
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("settings", [{"bits": 4}, {"bits": 2, "block": 64}, {"block": None}])
def test_linear_error_is_the_exact_formula(norm, world, settings):
    codec = gw.GlobalQSGD(norm=norm, **settings)
    vectors = gaussian(world, 40_000)
    measured = errors(codec, vectors, 10).square().mean(0).sum()
    assert float(measured / linear_error(codec, vectors).sum()) == pytest.approx(1, rel=0.03)


def nonzeros(codec, vectors, key=KEY):
    return sum(int((x != 0).sum()) for x in said(codec, vectors, key, "all_reduce"))


@pytest.mark.parametrize("world", [1, 4, 16])
@pytest.mark.parametrize("levels", [1, 4, 127])
def test_l2_error_and_nonzeros_are_below_the_bounds(world, levels):
    codec, d = gw.GlobalQSGD(levels=levels, norm="l2", block=None), 4096
    for vectors in (gaussian(world, d), [torch.ones(d) for _ in range(world)]):
        squares = torch.stack(vectors).double().square().sum()
        bound = min(world * d / levels**2, math.sqrt(world * d) / levels) / world**2  # eq. (4)
        assert linear_error(codec, vectors).sum() <= bound * squares
        assert errors(codec, vectors, 20).square().mean(0).sum() < bound * squares * 1.1
        most = levels * (levels + math.sqrt(world * d))  # eq. (5)
        assert nonzeros(codec, vectors) < most + 5 * math.sqrt(most)


def test_the_bound_has_sqrt_nd_in_it_and_not_sqrt_d():
    """Constant vectors, 16 workers, one level: 15.9, where the bounds are 16 and 4."""
    codec, world, d = gw.GlobalQSGD(levels=1, norm="l2", block=None), 16, 4096
    vectors = [torch.ones(d) for _ in range(world)]
    theta = float(linear_error(codec, vectors).sum() / d)
    assert math.sqrt(d) / world < theta < math.sqrt(world * d) / world
    assert theta == pytest.approx(15.94, rel=1e-3)
    assert float(errors(codec, vectors, 30).square().mean(0).sum() / d) == pytest.approx(
        16, rel=0.05
    )


def test_sharing_the_norm_saves_sqrt_n_nonzeros():
    """At the same s, against a norm for each worker; the error grows as much, so it is no gift."""
    shared = gw.GlobalQSGD(levels=1, norm="l2", block=None)
    for world in (4, 16):
        vectors = gaussian(world, 4096)
        together = alone = 0
        for step in range(60):
            together += nonzeros(shared, vectors, gw.Key(step=step))
            alone += sum(
                nonzeros(shared, [x], gw.Key(step=step, tensor=rank))
                for rank, x in enumerate(vectors)
            )
        assert alone / together == pytest.approx(math.sqrt(world), rel=0.08)


def test_linear_error_falls_with_the_number_of_workers():
    """1 / n at any n, since fields grow; with levels cut to 127 / n it would grow like n."""
    ours, paper = {}, {}
    for world in (2, 8, 32):
        vectors = [torch.tanh(10 * x) for x in gaussian(world, 20_000)]  # the same maximum
        for table, codec in (
            (ours, gw.GlobalQSGD(bits=4)),
            (paper, gw.GlobalQSGD(levels=127 // world)),
        ):
            table[world] = float(errors(codec, vectors, 3).square().sum(1).mean())
            bound = (steps_of(codec, vectors).square() / (4 * world)).sum()
            assert table[world] < bound  # d M^2 / (4 n s^2)
    assert ours[2] / ours[8] == pytest.approx(4, rel=0.15)
    assert ours[8] / ours[32] == pytest.approx(4, rel=0.15)
    assert paper[8] / paper[2] == pytest.approx(4, rel=0.25)
    assert paper[32] > 2 * paper[8]


# Errors: subtractive dither.


def bernoulli(x):
    """B_2 of the fraction of x: the covariance of two sawtooths is half of it."""
    f = x % 1
    return f * f - f + 1 / 6


def stratified_error(codec, vectors):
    """The exact law, over the common dither and the permutation, for every value."""
    world, step = len(vectors), steps_of(codec, vectors)
    z = torch.stack(vectors).double() / step
    total = torch.full_like(step, world / 12)
    for r, s in itertools.permutations(range(world), 2):
        apart = z[r] - z[s]
        total += (bernoulli(world * apart) / world - bernoulli(apart)) / (2 * (world - 1))
    return (step / world).square() * total


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.999, 1.0])
def test_subtractive_error_is_the_exact_law(world, correlation):
    codec = gw.GlobalQSGD(bits=4, dither="subtractive")
    vectors = gaussian(world, 10_000, correlation=correlation)
    measured = errors(codec, vectors, 60).square().mean(0).sum()
    assert float(measured / stratified_error(codec, vectors).sum()) == pytest.approx(1, rel=0.03)


def independent_error(codec, vectors):
    """1 / (12 n) of a step squared, whatever the data: every worker has a dither of its own."""
    return steps_of(codec, vectors).square() / (12 * len(vectors))


@pytest.mark.parametrize("world", [1, *WORLDS])
def test_subtractive_has_half_the_error_of_linear_on_independent_vectors(world):
    vectors = gaussian(world, 20_000)
    linear, ours = gw.GlobalQSGD(bits=4), gw.GlobalQSGD(bits=4, dither="subtractive")
    measured = errors(ours, vectors, 30).square().mean(0).sum()
    for mine, theirs in (
        (ours.adder(world), linear.adder(world)),
        (ours.network_adder(world), linear.network_adder(world)),
    ):
        assert mine.code_nbytes(20_000) == theirs.code_nbytes(20_000)
        assert mine.total_nbytes(20_000) == theirs.total_nbytes(20_000)
    assert float(measured / linear_error(linear, vectors).sum()) == pytest.approx(0.5, rel=0.04)
    assert float(measured / independent_error(ours, vectors).sum()) == pytest.approx(1, rel=0.04)


@pytest.mark.parametrize("world", WORLDS)
def test_equal_vectors_leave_an_nth_of_the_error(world, monkeypatch):
    vectors = [gaussian(1, 20_000)[0]] * world
    codec = gw.GlobalQSGD(bits=4, dither="subtractive")
    expected = independent_error(codec, vectors).sum() / world

    def ratio():
        return float(errors(codec, vectors, 10).square().mean(0).sum() / expected)

    assert ratio() == pytest.approx(1, rel=0.02)
    monkeypatch.setattr(uniform, "_shift", lambda key, world: 0)
    assert ratio() > 1.5, "dithers that are not spread must fail"


@pytest.mark.parametrize("world", [3, 4, 8])
def test_stratified_error_on_the_worst_data(world):
    """Vectors that undo the strata of one permutation, or stand half a step apart."""
    codec = gw.GlobalQSGD(levels=7, block=None, dither="subtractive")
    most = (1 + 1 / (world - 1) + 1 / world) / (12 * world * 49)
    for spread in (1 / world, 0.5):
        vectors = [torch.full((2000,), (0.3 - r * spread % 1) / 7) for r in range(world)]
        for x in vectors:
            x[0] = 1.0
        law = stratified_error(codec, vectors)[1:].mean()
        measured = errors(codec, vectors, 600)[:, 1:].square().mean()
        assert float(law) <= most * (1 + 1e-6)
        assert float(measured / law) == pytest.approx(1, rel=0.15)


def test_the_subtractive_error_knows_nothing_of_the_data():
    """Uniform within half a step and uncorrelated with the value; linear's depends on it."""
    x = gaussian(1, 50_000)[0]
    codec = gw.GlobalQSGD(bits=3, dither="subtractive")
    step = steps_of(codec, [x])
    error = (errors(codec, [x], 4) / step).flatten()
    assert float(error.abs().max()) <= 0.5 + 1e-4
    assert float(error.square().mean()) == pytest.approx(1 / 12, rel=0.01)
    sorted_error = error.sort().values
    uniform = torch.linspace(-0.5, 0.5, error.numel(), dtype=torch.float64)
    assert float((sorted_error - uniform).abs().max()) < 2 / math.sqrt(error.numel())
    both = torch.stack((error, (x / step).repeat(4)))
    assert abs(float(both.corrcoef()[0, 1])) < 0.01
    phase = ((x / step) % 1).repeat(4)
    near = error[(phase < 0.1) | (phase > 0.9)].square().mean()
    assert float(near) == pytest.approx(1 / 12, rel=0.05)
    linear = (errors(gw.GlobalQSGD(bits=3), [x], 4) / step).flatten()
    assert float(linear[(phase < 0.1) | (phase > 0.9)].square().mean()) < 0.6 / 12


def first_dithers(key, world):
    """Those of the worker of `key` at the first values: eq. (7), in 2^-16."""
    words = reference_tiles.half_words(0, 1, 16, key.of(rank=0)).view(-1)[:4]
    return (words + uniform._shift(key, world)) & 0xFFFF


@pytest.mark.parametrize("hop", [None, 0])
def test_the_permutation_is_independent_of_the_dither(hop, monkeypatch):
    """A worker's dither is uniform everywhere; the broken twin orders workers by dithers."""
    if hop is not None:
        monkeypatch.setattr(uniform, "_PERMUTATION", hop)
    keys = [gw.Key(seed=5, step=step) for step in range(300)]
    dithers = torch.stack([first_dithers(key, 2) for key in keys]) / 65536
    z = (dithers.mean(0) - 0.5).abs().max() * math.sqrt(12 * len(keys))
    assert z < 4 if hop is None else z > 8


def test_all_permutations_are_drawn():
    seen = set()
    for step in range(300):
        keys = [gw.Key(step=step, rank=rank) for rank in range(3)]
        shifts = tuple(uniform._shift(key, 3) for key in keys)
        assert sorted(shifts) == [0, 21845, 43690]
        seen.add(shifts)
    assert len(seen) == 6


@pytest.mark.parametrize("world", range(1, 40))
def test_the_sum_of_dithers_is_rebuilt_from_one(world):
    """Sum the dithers of all workers over every random word, against `times` and `centre`."""
    word = torch.arange(1 << 16)
    shifts = [(j << 16) // world for j in range(world)]
    total = sum((word + shift) & 0xFFFF for shift in shifts)
    rebuilt = (world * word) & 0xFFFF
    assert (total - rebuilt == sum(shifts)).all()
    assert uniform._centre(world) == 65_535 * world - 2 * sum(shifts)


# What it costs, and what it refuses.


def test_bits_on_the_wire():
    numel = 512_000
    codec = gw.GlobalQSGD(bits=4)
    worlds = (1, 2, 4, 8, 16, 64)
    fields = {n: 8 * codec.network_adder(n).code_nbytes(numel) / numel for n in worlds}
    assert fields == {1: 4.0, 2: 5.375, 4: 6.4375, 8: 8.0, 16: 8.0, 64: 10.6875}
    total = {n: 8 * codec.adder(n).total_nbytes(numel) / numel for n in worlds}
    assert total == {1: 4.0, 2: 5.0, 4: 6.0, 8: 7.0, 16: 8.0, 64: 10.0}
    assert 8 * codec.adder(64).code_nbytes(numel) / numel == 4.0
    assert 8 * codec.max_nbytes(numel) / numel == 4.0625


def count_bytes(rank, numel, collective):
    from gradwire.reduction.reducer import Reducer
    from gradwire.transport.link import Link

    link = Link()
    reducer = Reducer(link, gw.GlobalQSGD(), collective=collective, min_numel=0)
    reduce_now(reducer, data(rank, numel))
    return link.account.bytes_sent


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bytes_are_those_of_the_norms_the_codes_and_the_totals(worlds, size):
    codec, numel = gw.GlobalQSGD(), 512 * 96
    norms = (size - 1) * 4 * numel // 512
    ring = 2 * (size - 1) * codec.network_adder(size).code_nbytes(numel) // size
    code, total = codec.adder(size).code_nbytes(numel), codec.adder(size).total_nbytes(numel)
    direct = code if size == 2 else (size - 1) * (code + total) // size
    for collective, expected in (("all_reduce", ring), (None, direct)):
        sent = worlds[size].run(count_bytes, numel, collective)
        assert sent == [norms + expected] * size
    assert direct < ring


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"bits": 1}, "`bits` must be an integer from 2 to 8, got 1"),
        ({"levels": 128}, "`levels` must be an integer from 1 to 127, got 128"),
        ({"bits": 2, "levels": 7}, "needs 4 bits, got `bits=2`; give one of the two"),
        ({"norm": "l1"}, "`norm` must be one of max, l2, l2-max, max-l2, got 'l1'"),
        ({"block": 100}, "`block` must be a power of two from 8 to 512, .* got 100"),
        ({"dither": "triangular"}, "`dither` must be one of exponential, .* got 'triangular'"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        gw.GlobalQSGD(**settings)
