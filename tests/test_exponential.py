"""The laws of exponential Global-QSGD: sums of codes without bias, and what they cost."""

import copy
import dataclasses
import itertools
import math
import pickle

import pytest
import torch

import gradwire as gw
from gradwire.collectives.parts import Part
from gradwire.kernels import cpu, reference
from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.kernels.reference import tiles as reference_tiles
from gradwire.kernels.reference.pack import pack
from gradwire.reduction.reducer import Reducer
from gradwire.transport.executor import Inline
from gradwire.transport.link import Link
from laws import reduce_now
from world import data

KEY = gw.Key(seed=2, step=3, tensor=4)
EXPONENTIAL = gw.GlobalQSGD(bits=8, dither="exponential")


def gaussian(world, numel, seed=0, correlation=0.0):
    rows = torch.stack([data(rank, numel, seed) for rank in range(world)])
    common = data(world, numel, seed + 1)
    return list(math.sqrt(correlation) * common + math.sqrt(1 - correlation) * rows)


def means(codec, vectors, draws):
    keys = [gw.Key(seed=1, step=i) for i in range(draws)]
    return torch.stack([gw.simulate(codec, vectors, key).double() for key in keys])


# Kernels.


@pytest.fixture
def every_coin(monkeypatch):
    """Vectors of 2^16 values meet every random half-word once, in the reference kernels."""

    def all_words(counter, rows, size, key):
        first = 8 * counter
        return torch.arange(first, first + rows * size).view(rows, size)

    monkeypatch.setattr(reference_tiles, "half_words", all_words)


def value_of(codes, width, headroom=0):
    out = torch.empty(8 * codes.numel() // width)
    reference.exp_dequantize(torch.ones(1), codes, out, width=width, headroom=headroom, block=None)
    return out.double()


def test_rounding_is_exact_on_average(every_coin):
    """Over all 2^16 coins, to 2^-17 of the distance of the two powers, and of the least one."""
    codes = torch.empty(packed_nbytes(1 << 16, 4), dtype=torch.uint8)
    for share in (1.0, 0.999, 0.7, 0.5, 0.3, 0.1, 2.0**-6, 0.9 * 2.0**-6, 1e-3, 1e-5, 0.0):
        for sign in (1, -1):
            x = torch.full((1 << 16,), sign * share)
            reference.exp_quantize(
                x, torch.ones(1), codes, width=4, headroom=0, block=None, norm=None, key=KEY
            )
            values = value_of(codes, 4)
            assert len(values.unique()) <= 2
            allowed = 2.0**-17 * max(share, 2.0**-6)
            assert abs(float(values.mean()) - sign * share) <= allowed * (1 + 1e-6)


def sums_over_coins(a, b, width):
    """The exact sum, and what `exp_reduce` makes of it with each of the 2^16 coins."""
    one, other = (pack(torch.full((128, 512), code), width) for code in (a, b))
    exact = value_of(one, width)[0] + value_of(other, width)[0]
    reference.exp_reduce(one, other, width=width, key=KEY)
    return exact, value_of(one, width)


def test_sums_of_two_codes_are_exact_on_average(every_coin):
    nonzero = [*range(2, 8), *range(10, 16)]  # of 4 bits; c = 1 has no headroom left
    for a, b in itertools.product([0, *nonzero], repeat=2):
        exact, values = sums_over_coins(a, b, 4)
        assert values.mean() == exact, (a, b)
        assert (values.abs() <= 2 * exact.abs()).all()


@pytest.mark.parametrize("sign", [0, 128])
def test_sums_of_codes_far_apart_are_exact_to_the_sixteenth_bit(every_coin, sign):
    for apart in range(1, 20):
        exact, values = sums_over_coins(20, sign | 20 + apart, 8)
        miss = abs(float(values.mean() / exact) - 1)
        assert miss == 0 if apart <= 16 else miss <= 2.0**-17, apart


# The mean.


def slope(codec, world, draws=30):
    vectors = gaussian(world, 200_000, correlation=0.5)
    mean = torch.stack(vectors).double().mean(0)
    return float((means(codec, vectors, draws) * mean).sum(1).mean() / mean.square().sum())


@pytest.mark.parametrize("world", [2, 3, 4, 7, 8, 16])
def test_the_mean_is_unbiased_within_a_fifth_of_a_percent(world):
    assert slope(EXPONENTIAL, world) == pytest.approx(1, abs=0.002)


def test_the_test_of_slopes_rejects_a_reduce_without_coins(monkeypatch):
    """Always to the larger power, or never: what a forgotten random bit does."""
    true_reduce = reference.exp_reduce
    for coin in (0, 65_535):

        def reduce(into, term, *, width, key, offset=0, coin=coin):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    reference_tiles, "half_words", lambda c, r, s, k: torch.full((r, s), coin)
                )
                true_reduce(into, term, width=width, key=key, offset=offset)

        monkeypatch.setattr(cpu, "exp_reduce", reduce)
        assert abs(slope(EXPONENTIAL, 4, draws=1) - 1) > 0.01


@pytest.mark.parametrize("world", [2, 3, 8])
def test_what_underflows_is_rounded_without_bias(world):
    """Five bits among 8 workers reach down to 2^-11; the values here are far below."""
    codec = gw.GlobalQSGD(bits=5, block=None, dither="exponential")
    vectors = [torch.full((40_000,), 1e-5) for _ in range(world)]
    for x in vectors:
        x[0] = 1.0
    draws = means(codec, vectors, 40)[:, 1:]
    error = float(draws.mean() - 1e-5) / float(draws.std() / math.sqrt(draws.numel()))
    assert abs(error) < 5
    assert float((draws == 0).double().mean()) > 0.5
    least = 2.0 ** -(2**4 - 2 - (world - 1).bit_length())
    raised = means(codec, [x.clamp_min(least) for x in vectors], 1)  # as the authors' code does
    assert float(raised[:, 1:].mean()) > 5e-5


@pytest.mark.parametrize("world", [2, 3, 4, 7, 8, 64, 1024])
@pytest.mark.parametrize("bits", [5, 8])
def test_nothing_overflows_with_every_worker_at_its_extreme(world, bits):
    """Exact for powers of two; else the last sums fall between two powers."""
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]).repeat(120)
    codec = gw.GlobalQSGD(bits=bits, dither="exponential")
    got = gw.simulate(codec, [3.0 * signs] * world, KEY) / (3.0 * signs)
    top = 2 ** (world - 1).bit_length() / world
    assert got.max() <= top * (1 + 1e-6)
    if world & (world - 1) == 0:
        assert torch.equal(got, torch.ones(600))
    else:
        assert got.min() >= top / 2 * (1 - 1e-6)
        assert float(got.mean()) == pytest.approx(1, abs=5 * float(got.std()) / math.sqrt(600))


@pytest.mark.parametrize("poison", [float("inf"), float("-inf"), float("nan")])
def test_one_worker_spoils_its_block_for_all_and_no_more(poison):
    vectors = gaussian(3, 3000)
    vectors[1][1030] = poison
    got = gw.simulate(EXPONENTIAL, vectors, KEY)
    assert got[1024:1536].isnan().all()
    assert got[:1024].isfinite().all()
    assert got[1536:].isfinite().all()


# The error.


@pytest.mark.parametrize("world", [1, 2, 4, 7, 16, 64])
def test_second_moments_are_within_nine_eighths_a_step(world):
    bound = (9 / 8) ** (1 + math.ceil(math.log2(world)))  # eq. (11)
    vectors = gaussian(world, 20_000)
    alike = [x.abs() for x in vectors]
    mean = torch.stack(alike).double().mean(0)
    assert means(EXPONENTIAL, alike, 5).square().mean() < bound * mean.square().mean()
    assert means(EXPONENTIAL, vectors, 5).square().mean() < bound * mean.square().mean()


def test_one_rounding_costs_at_most_an_eighth():
    """(m - 1) (2 - m) / m^2 at mantissa m: at most 1 / 8, and 0.081 for Gaussian values."""
    for share, expected in ((0.75, 1 / 9), (2 / 3, 1 / 8), (1.0, 0.0), (0.5, 0.0)):
        x = torch.full((100_000,), share)
        x[0] = 1.0
        codec = gw.GlobalQSGD(bits=8, block=None, dither="exponential")
        error = (means(codec, [x], 4) - x)[:, 1:].square().mean() / share**2
        assert float(error) == pytest.approx(expected, rel=0.02)
    x = gaussian(1, 200_000)[0]
    error = (means(EXPONENTIAL, [x], 4) - x).square().mean() / x.double().square().mean()
    assert float(error) == pytest.approx(0.081, rel=0.02)


@pytest.mark.parametrize(
    ("world", "correlation", "expected"), [(8, 0.0, 0.33), (16, 0.0, 0.42), (16, 0.5, 0.16)]
)
def test_the_error_of_the_mean_grows_slowly_with_the_workers(world, correlation, expected):
    vectors = gaussian(world, 50_000, correlation=correlation)
    mean = torch.stack(vectors).double().mean(0)
    error = (means(EXPONENTIAL, vectors, 4) - mean).square().mean() / mean.square().mean()
    assert float(error) == pytest.approx(expected, rel=0.05)


def test_heavy_tails_are_where_it_pays():
    """One norm for the whole vector, as in the paper, and layers of very different size in it."""
    scales = 10.0 ** -torch.arange(0, 5).repeat_interleave(4000)
    vectors = [x * scales for x in gaussian(4, 20_000)]
    mean = torch.stack(vectors).double().mean(0)

    def worst(**settings):
        codec = gw.GlobalQSGD(bits=8, **settings)
        error = (means(codec, vectors, 4) - mean).square().mean(0)
        return float((error / mean.square().mean()).view(5, -1).mean(1).max()), float(
            (error.view(5, -1).mean(1) / mean.square().view(5, -1).mean(1)).max()
        )

    assert worst(block=None, dither="exponential")[1] < 0.4
    assert worst(block=None)[1] > 100
    assert worst(block=512)[1] < 0.01, "a norm for each block does as well"


# The type, the bytes, and what is refused.


def test_the_dither_decides_who_may_add():
    linear = gw.GlobalQSGD()
    assert linear.network_adder(4) is not None
    assert EXPONENTIAL.network_adder(4) is None
    assert gw.GlobalQSGD(8, None, "max", 512, "exponential") == EXPONENTIAL
    changed = dataclasses.replace(linear, dither="exponential", bits=8)
    assert changed == EXPONENTIAL
    assert dataclasses.replace(changed, dither="linear", bits=4) == linear
    for codec in (linear, EXPONENTIAL):
        assert pickle.loads(pickle.dumps(codec)) == copy.deepcopy(codec) == codec
        assert hash(copy.copy(codec)) == hash(codec)


def count_bytes(rank, numel):
    link = Link()
    reduce_now(Reducer(link, EXPONENTIAL, min_numel=0), data(rank, numel))
    return link.account.bytes_sent, link.account.message_bytes


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bytes_are_those_of_two_shots(worlds, size):
    numel = 512 * 96
    for sent, message in worlds[size].run(count_bytes, numel):
        norms = 4 * numel // 512
        assert message == numel + norms
        assert sent == (size - 1) * norms + 2 * (size - 1) * numel // size


def reduce_grouped(rank, order, together):
    """Three parameters, in one bucket or in three, in this order, with residuals."""
    reducer = Reducer(Link(), gw.GlobalQSGD(dither="exponential"), error_feedback=True, min_numel=0)
    numels = (700, 9000, 2500)
    groups = [order] if together else [[i] for i in order]
    results = {}
    for _ in range(2):
        for group in groups:
            values = [data(rank, numels[i], seed=i) for i in group]
            bucket = torch.cat(values)
            views = bucket.split([numels[i] for i in group])
            parts = [Part(view, i) for i, view in zip(group, views, strict=True)]
            last = group is groups[-1]
            reducer.submit(Inline(reducer.link), bucket, parts, last=last).wait()
            results |= dict(zip(group, views, strict=True))
    owed = [reducer.residuals.of(str(i), numels[i]) for i in range(3)]
    return [results[i] for i in range(3)], owed


def test_the_mean_does_not_depend_on_buckets_or_shards(worlds):
    expected = worlds[3].run(reduce_grouped, (0, 1, 2), True)
    for order, together in (((2, 1, 0), True), ((1, 0, 2), False)):
        got = worlds[3].run(reduce_grouped, order, together)
        for (a, residual_a), (b, residual_b) in zip(expected, got, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
            assert all(torch.equal(x, y) for x, y in zip(residual_a, residual_b, strict=True))


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="powers of two, as many as `bits` leave, got `levels=5`"):
        gw.GlobalQSGD(levels=5, dither="exponential")
    with pytest.raises(ValueError, match="`bits` must be an integer from 2 to 8, got 9"):
        gw.GlobalQSGD(bits=9, dither="exponential")
    with pytest.raises(ValueError, match="must be one of exponential, linear, subtractive, got 3"):
        gw.GlobalQSGD(dither=3)
    for bits, most in ((2, 1), (3, 4), (4, 64)):
        codec = gw.GlobalQSGD(bits=bits, dither="exponential")
        codec.adder(most)
        with pytest.raises(ValueError, match=f"no room for a sum of {most + 1} workers; use `bits"):
            codec.adder(most + 1)
        dataclasses.replace(codec, bits=bits + 1).adder(most + 1)


def attach_too_narrow(rank):
    narrow = gw.GlobalQSGD(bits=2, dither="exponential")
    Reducer(Link(), narrow, collective="two_shot")
    try:
        Reducer(Link(), narrow)
    except ValueError as error:
        return str(error)


def test_codes_too_narrow_for_the_world_are_refused_at_the_start(worlds):
    for message in worlds[2].run(attach_too_narrow):
        assert "of 2 bits have no room for a sum of 2 workers; use `bits=3` or more" in message


@pytest.mark.parametrize("width", [2, 4, 8])
def test_backends_agree_on_every_code_even_those_that_are_never_written(width):
    """A sign without a magnitude is plain zero."""
    codes = pack(torch.arange(512).view(1, -1) % (1 << width), width).view(-1)
    found = []
    for backend in (reference, cpu):
        out = torch.empty(512)
        options = {"width": width, "headroom": 0, "block": None}
        backend.exp_dequantize(torch.ones(1), codes, out, **options)
        found.append(out.view(torch.int32))
    assert torch.equal(*found)
