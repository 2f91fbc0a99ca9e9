"""NDQSG: which values are decoded wrong, how many are expected to be, and what happens then."""

import logging
import math
from contextlib import contextmanager
from logging.handlers import BufferingHandler

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.collectives import COLLECTIVES
from gradwire.collectives.parts import Part, whole
from gradwire.kernels import cpu
from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.reduction.checkpoint import unpack
from gradwire.reduction.reducer import Reducer
from gradwire.transport.executor import Inline
from gradwire.transport.link import Link
from laws import reduce_now, roundtrip
from world import data, only_first_warns

KEY = gw.Key(seed=4, step=2, tensor=1)
PAPER = {"levels": 3, "ratio": 3, "max_failures": 0.005, "wire": "packed"}
"""7 levels folded to 3, in fields of 3 bits and 2."""
SPEC = "ndqsg:levels=3,block=512,max_failures=0.005,wire=packed"


def gaussian(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def workers(world, numel, correlation, seed=0):
    """Vectors whose pairs have this correlation: something common, and something of their own."""
    common = gaussian(numel, 1000 + seed) * math.sqrt(correlation)
    own = math.sqrt(1 - correlation)
    return [common + own * gaussian(numel, 100 * seed + rank) for rank in range(world)]


def nested_roundtrip(x, y, *, kappa, ratio=3, alpha=1.0, levels=3, backend=cpu):
    """x as a nested worker sends it, decoded with y as side information; and the fine step."""
    width = (ratio - 1).bit_length()
    units, codes = torch.tensor([kappa / levels]), torch.empty(packed_nbytes(x.numel(), width))
    codes = codes.to(torch.uint8)
    options = {"ratio": ratio, "width": width, "block": None, "key": KEY}
    backend.quantize_nested(x, units / alpha, codes, **options)
    total = y.clone()
    backend.add_nested(units, codes, total, count=1, alpha=alpha, **options)
    return total - y, kappa / levels


@pytest.mark.parametrize(
    ("correlation", "rate", "error", "digit"),
    [
        (0.0, 0.117, 12.2, 0.0005),
        (0.5, 0.034, 4.0, 0.0005),
        (0.8, 0.002, 1.16, 0.0005),
        (0.9, 3.5e-5, 1.003, 0.5e-5),
        (0.95, 0.0, 1.0, 0.0),
        (0.99, 0.0, 1.0, 0.0),
    ],
)
def test_the_failure_table(correlation, rate, error, digit):
    """Gaussian values and side information, a scale of 4.65 deviations, 7 levels folded to 3."""
    n, kappa = 1_000_000, 4.65
    x = gaussian(n).clamp(-kappa, kappa)
    y = correlation * x + math.sqrt(1 - correlation**2) * gaussian(n, 1)
    decoded, step = nested_roundtrip(x, y, kappa=kappa)
    missed = (decoded - x).double() / step
    wrong = missed.abs() > 0.5 + 1e-3
    measured = wrong.double().mean().item()
    sampling = math.sqrt(max(rate, 1e-6) / 200_000)  # of the table's own 200,000 values
    assert abs(measured - rate) < digit + 4 * sampling
    expected = gaussian_failures(math.sqrt(2 - 2 * correlation) / step, 3)
    assert abs(measured - expected) < 5 * math.sqrt((expected + 1e-7) / n)
    assert 12 * missed.square().mean() == pytest.approx(error, rel=0.02, abs=108 * 4 * sampling)
    cells = missed / 3
    assert (cells - cells.round()).abs().max() <= 0.5 / 3 + 1e-3  # wrong by whole coarse cells


def gaussian_failures(tau, ratio):
    """The law (5) of docs/codecs/dithered.md."""

    def integral(w):
        return w * norm.sf(w / tau) - tau * norm.pdf(w / tau)

    return 2 * (integral((ratio + 1) / 2) - integral((ratio - 1) / 2))


def test_right_decodes_have_the_error_of_plain_dithers():
    x, y = gaussian(400_000).clamp(-4, 4), gaussian(400_000).clamp(-4, 4)
    y = x + 0.1 * y
    for alpha in (1.0, 0.9):
        decoded, step = nested_roundtrip(x, y, kappa=4.0, alpha=alpha)
        error, z = (decoded - x).double(), (x - y).double()
        mse = (1 - alpha**2) ** 2 * z.square().mean() + alpha**2 * step**2 / 12  # eq. (3)
        assert error.square().mean() == pytest.approx(float(mse), rel=0.01)


@pytest.mark.parametrize("alpha", [1.0, 0.8])
def test_a_codec_encodes_and_decodes_with_the_same_alpha(alpha):
    codec = gw.NDQSG(levels=7, ratio=5, alpha=alpha, block=None).nested
    x, plain_x = (y.clamp(-3, 3) for y in workers(2, 100_000, 0.99))
    keys = [KEY.of(rank=rank) for rank in range(2)]
    payloads = [codec.encode(v, key) for v, key in zip((plain_x, x), keys, strict=True)]
    mean = torch.empty(100_000)
    codec.mean_into(payloads, mean, keys)
    plain = codec.decode(payloads[0], 100_000, keys[0])
    error, z, step = (2 * mean - plain - x).double(), (x - plain).double(), 3 / 7
    mse = (1 - alpha**2) ** 2 * z.square().mean() + alpha**2 * step**2 / 12  # eq. (3)
    assert error.square().mean() == pytest.approx(float(mse), rel=0.02)


def test_decoding_is_certain_near_the_side_information():
    """|alpha z| below (D2 - D1) / 2 never fails, and just above it does: eq. (3)."""
    x = torch.linspace(-1, 1, 300_000)
    for ratio in (3, 5):
        limit = (ratio - 1) / 2 / 7
        sure, step = nested_roundtrip(x, x + 0.999 * limit, kappa=1.0, levels=7, ratio=ratio)
        assert (sure - x).abs().max() <= step / 2 * 1.001
        unsure, _ = nested_roundtrip(x, x + 1.5 * limit, kappa=1.0, levels=7, ratio=ratio)
        assert (unsure - x).abs().max() > step


def test_half_of_the_workers_are_nested_and_the_first_is_not():
    for fraction in (0.0, 0.25, 0.5, 0.7, 0.99):
        codec = gw.NDQSG(nested_fraction=fraction).nested
        for world in range(1, 20):
            nested = [codec.is_nested(rank) for rank in range(world)]
            assert not nested[0]
            assert sum(nested) == math.floor(world * fraction)


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_agreeing_workers_get_the_mean_at_fewer_bits(world):
    codec, plain = gw.NDQSG(**PAPER, block=4096).nested, gw.DQSG(levels=3, block=4096)
    vectors = workers(world, 40_000, 0.99)
    mean, exact = gw.simulate(codec, vectors, KEY, "all_gather"), torch.stack(vectors).mean(0)
    other = gw.simulate(plain, vectors, KEY, "all_gather")
    assert (mean - exact).square().mean() < 1.1 * (other - exact).square().mean()
    sizes = [codec.encode(x, KEY.of(rank=r)).numel() for r, x in enumerate(vectors)]
    packed = plain.encode(vectors[0], KEY).numel()
    nested = world // 2
    assert sum(sizes) < (world - nested) * (packed + 4) + 0.68 * nested * packed


@pytest.mark.parametrize("wire", ["zstd", "elias"])
def test_wires_carry_the_same_codes(wire):
    """Of several payloads at once: what one is read into must not be the room of the next."""
    vectors = workers(4, 30_000, 0.9)
    plain, coded = (gw.NDQSG(levels=3, wire=each).nested for each in ("packed", wire))
    means = [gw.simulate(codec, vectors, KEY, "all_gather") for codec in (plain, coded)]
    assert torch.equal(*means)
    sizes = [codec.encode(vectors[1], KEY.of(rank=1)).numel() for codec in (plain, coded)]
    assert (sizes[1] < 0.85 * sizes[0]) == (wire == "zstd")


def test_the_ratio_follows_from_the_levels():
    ratios = {levels: gw.NDQSG(levels=levels).ratio for levels in (2, 3, 5, 7, 15, 127)}
    assert ratios == {2: 3, 3: 3, 5: 5, 7: 9, 15: 19, 127: 159}
    assert str(gw.NDQSG(levels=7, ratio=9)) == "ndqsg:levels=7"
    assert gw.parse("ndqsg:levels=7") == gw.NDQSG(levels=7, ratio=9)


LAWS = {
    "gaussian": lambda random, n: random.standard_normal(n),
    "laplace": lambda random, n: random.laplace(size=n) / math.sqrt(2),
    "student-t": lambda random, n: random.standard_t(3, n) / math.sqrt(3),
}


def spread_workers(law, world, numel, correlation):
    """Vectors of a Gaussian part in common, and a part of their own that has this law."""
    own = [LAWS[law](np.random.default_rng(rank), numel) for rank in range(world)]
    common = math.sqrt(correlation) * gaussian(numel, 999).double().numpy()
    return [torch.from_numpy(common + math.sqrt(1 - correlation) * x).float() for x in own]


def estimate(code, vectors, keys):
    """What is expected of nested payloads, from those of `code`, plain or nested."""
    payloads = [code.encode(x, key) for x, key in zip(vectors, keys, strict=True)]
    (rate,) = code.mean_into(payloads, torch.empty(vectors[0].numel()), keys)
    return rate


def noise(rate, numel):
    """The standard deviation of a rate that so many values show."""
    return math.sqrt(max(rate, 1e-5) / numel)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("world", [2, 4, 7])
def test_expected_failures_are_never_below_those_that_happen(world, correlation, law):
    """But for sampling error, and counted exactly if all payloads are plain.

    A single plain worker sees the others folded, and assumes heavy tails: that may be too high, up
    to eight times and 0.001 here. With more of them it is at most a third and 0.0005.
    """
    codec, numel = gw.NDQSG(**PAPER, block=512), 65_536
    vectors = spread_workers(law, world, numel, correlation)
    keys = [KEY.of(rank=rank) for rank in range(world)]
    measured = measure_failures(codec, vectors, keys)
    assert estimate(codec.plain, vectors, keys) == pytest.approx(measured, rel=1e-3, abs=2 / numel)
    expected, sampling = estimate(codec.nested, vectors, keys), 5 * noise(measured, numel)
    most = 8 * measured + 1e-3 if world == 2 else 4 / 3 * measured + 5e-4
    assert measured - sampling < expected < most
    if world > 2:
        assert codec.trusts(expected) == codec.trusts(measured) or abs(measured - 0.005) < 1e-3


@pytest.mark.parametrize(
    "spec", ["ndqsg:levels=3,block=64", "ndqsg:levels=3,block=4096", "ndqsg:levels=5,ratio=3"]
)
@pytest.mark.parametrize("law", LAWS)
def test_expected_failures_of_other_blocks(spec, law):
    """In two workers that agree so well that nested payloads come into question."""
    codec, numel, keys = gw.parse(spec), 65_536, [KEY.of(rank=rank) for rank in range(2)]
    for correlation in (0.9, 0.95, 0.99):
        vectors = spread_workers(law, 2, numel, correlation)
        measured = measure_failures(codec, vectors, keys)
        expected = estimate(codec.nested, vectors, keys)
        assert measured - 5 * noise(measured, numel) < expected < 0.06


@pytest.mark.parametrize("numel", [1, 90, 700, 4097])
@pytest.mark.parametrize("block", [8, 1024, None])
def test_any_length_is_looked_at(numel, block):
    codec, keys = gw.NDQSG(**PAPER, block=block), [KEY.of(rank=rank) for rank in range(3)]
    for world in (2, 3):
        vectors = workers(world, numel, 0.999)
        for code in (codec.plain, codec.nested):
            assert 0 <= estimate(code, vectors, keys[:world]) < 0.05


def test_alpha_below_one_is_rehearsed_from_above():
    """A plain payload holds less of its error than a nested one has, and that much is added."""
    codec, numel = gw.NDQSG(levels=7, ratio=5, alpha=0.9, block=512), 65_536
    keys = [KEY.of(rank=rank) for rank in range(2)]
    for correlation in (0.8, 0.9, 0.95):
        vectors = spread_workers("gaussian", 2, numel, correlation)
        measured = measure_failures(codec, vectors, keys)
        expected = estimate(codec.plain, vectors, keys)
        sampling = 5 * noise(measured, numel)
        assert measured - sampling < expected < 1.2 * measured + sampling


def measure_failures(codec, vectors, keys):
    """The share of nested values that lie more than half a step from where eq. (3) has them."""
    codec = codec.nested
    world, numel = len(vectors), vectors[0].numel()
    nested = [rank for rank in range(world) if codec.is_nested(rank)]
    order = [rank for rank in range(world) if rank not in nested]
    total, wrong = torch.zeros(numel), 0
    for rank in order:
        total += codec.decode(codec.encode(vectors[rank], keys[rank]), numel, keys[rank])
    for count, rank in enumerate(nested, len(order)):
        payload = codec.encode(vectors[rank], keys[rank])
        part = codec._read(payload, numel, keys[rank])
        before = total.clone()
        codec.add_nested(part, total, count, 0)
        steps = part.steps.repeat_interleave(codec.block or numel)[:numel]
        right = vectors[rank] + (codec.alpha**2 - 1) * (vectors[rank] - before / count)
        wrong += int(((total - before - right).abs() > 0.51 * codec.alpha * steps).sum())
    return wrong / (numel * len(nested))


def test_zeros_and_non_finite_blocks_among_workers():
    codec, vectors = gw.NDQSG(**PAPER, block=512).nested, workers(4, 2048, 0.99)
    for x in vectors:
        x[:512] = 0
    vectors[1][600] = float("nan")  # a nested worker
    vectors[2][1100] = float("inf")  # a plain one
    mean = gw.simulate(codec, vectors, KEY, "all_gather")
    assert torch.equal(mean[:512], torch.zeros(512))
    assert mean[512:1536].isnan().all()
    assert mean[1536:].isfinite().all()


def test_a_nested_payload_alone_is_refused():
    codec, x = gw.NDQSG(**PAPER, block=512), gaussian(1000)
    payload = codec.nested.encode(x, KEY.of(rank=1))
    with pytest.raises(
        ValueError, match="pass them all to `mean_into`, or encode with the plain c"
    ):
        codec.decode(payload, 1000, KEY.of(rank=1))
    with pytest.raises(ValueError, match="expected at least one plain one"):
        codec.mean_into([payload], torch.empty(1000), [KEY.of(rank=1)])
    assert roundtrip(codec, x, KEY.of(rank=1)).isfinite().all()


@contextmanager
def logged():
    """The messages that gradwire logs in here, in a list that fills at the end."""
    texts, heard, logger = [], BufferingHandler(1000), logging.getLogger("gradwire")
    logger.addHandler(heard)
    yield texts
    logger.removeHandler(heard)
    texts += [record.getMessage() for record in heard.buffer]


def reduce_steps(rank, codec, collective, correlation, steps):
    """The Reducer over some steps: results, statistics, bits per value in each, and warnings."""
    link = Link()
    reducer = Reducer(link, codec, collective=collective, min_numel=0)
    results, bits = [], []
    with logged() as texts:
        for step in range(steps):
            before = link.account.message_bytes
            x = workers(link.size, 20_000, correlation, seed=step)[rank].clone()
            reduce_now(reducer, x)
            results.append(x)
            bits.append(8 * (link.account.message_bytes - before) / 20_000)
    counts, (adaptation,) = reducer.counts(), reducer.adaptations
    rates = {n: state.failure_rate for n, state in adaptation.states.items()}
    return (
        results,
        bits,
        rates,
        counts.get("expected_failures", 0),
        counts.get("fallbacks", 0),
        texts,
    )


@pytest.mark.parametrize("collective", ["all_gather", "two_shot"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_workers_that_agree_are_nested_from_the_second_step_on(worlds, size, collective):
    codec = gw.NDQSG(**PAPER, block=4096)
    answers = worlds[size].run(reduce_steps, codec, collective, 0.99, 3)
    first = answers[0]
    for rank, (results, bits, rates, failures, fallbacks, texts) in enumerate(answers):
        assert all(torch.equal(a, b) for a, b in zip(results, first[0], strict=True))
        assert rates == first[2]
        assert 0 <= failures < 20
        assert fallbacks == 0
        assert texts == []
        assert bits[0] > 3
        assert (bits[1] < 2.1) == codec.nested.is_nested(rank)


@pytest.mark.parametrize("collective", ["all_gather", "two_shot"])
@pytest.mark.parametrize("size", [2, 4])
def test_workers_that_disagree_are_told_so_and_sent_plain(worlds, size, collective):
    answers = worlds[size].run(reduce_steps, gw.NDQSG(**PAPER, block=512), collective, 0.0, 4)
    for rank, (results, bits, rates, failures, fallbacks, texts) in enumerate(answers):
        assert all(torch.equal(a, b) for a, b in zip(results, answers[0][0], strict=True))
        assert rates[0] > 0.05
        assert failures == 0
        assert fallbacks == 3
        assert len(texts) == (rank == 0)
        assert all("would be decoded wrong. The plain code is sent" in text for text in texts)
        assert min(bits) > 3


def reduce_many(rank, names):
    """Two steps of parameters that workers disagree about; what is logged."""
    reducer = Reducer(Link(), gw.NDQSG(**PAPER, block=512), min_numel=0)
    with logged() as texts:
        for step in range(2):
            reducer.begin_step()
            for number, name in enumerate(names):  # each a bucket of its own
                x, last = data(rank, 5000, seed=step), name == names[-1]
                part = Part(x, number, name=name)
                reducer.submit(Inline(reducer.link), x, [part], last=last).wait()
    return texts


def test_one_warning_names_the_parameters_of_all_buckets(worlds):
    (few,), *others = worlds[2].run(reduce_many, ["a", "b"])
    assert others == [[]]
    assert few.startswith(f"{SPEC}: workers differ too much: up to ")
    assert "% of the values of 'a', 'b' would be decoded wrong." in few
    (many,), *_ = worlds[2].run(reduce_many, list("abcdefg"))
    assert "values of 'a', 'b', 'c', 'd' and 3 more would" in many


def descend(rank, spec, steps):
    """Least squares in 20,000 unknowns by plain descent; every worker has a target of its own."""
    reducer = Reducer(Link(), gw.parse(spec), min_numel=0)
    targets = torch.stack([data(r, 20_000) for r in range(reducer.link.size)])
    x = torch.zeros(20_000)
    for _ in range(steps):
        gradient = x - targets[rank]
        reduce_now(reducer, gradient)
        x -= 0.3 * gradient
    failures = reducer.counts().get("expected_failures", 0)
    return float((x - targets.mean(0)).square().mean()), failures


def test_descent_does_not_diverge_where_workers_disagree(worlds):
    """As near to the optimum as DQSG; nested payloads sent regardless are far off it."""
    dithered, _ = worlds[4].run(descend, "dqsg:levels=3", 40)[0]
    default, failures = worlds[4].run(descend, SPEC, 40)[0]
    regardless, counted = worlds[4].run(descend, SPEC.replace("0.005", "1.0"), 40)[0]
    assert failures == 0
    assert default < 1.2 * dithered
    assert counted > 10_000
    assert regardless > 3 * dithered


def attach_and_resume(rank):
    """Three steps of DDP: statistics, and the state that another attachment takes over."""
    modules = [DistributedDataParallel(nn.Linear(128, 128, bias=False)) for _ in range(2)]
    handle, other = (gw.attach(module, gw.NDQSG(**PAPER, block=1024)) for module in modules)
    for step in range(3):
        torch.manual_seed(step)  # the same on every rank: workers agree
        modules[0](torch.randn(256, 128)).square().sum().backward()
    state, stats = handle.state_dict(), handle.stats()
    other.load_state_dict(state)
    carried = unpack(other.state_dict()["learned"])
    handle.close()
    other.close()
    return unpack(state["learned"]), carried, stats


def test_failure_rates_are_in_the_state_and_in_the_statistics(worlds):
    for rank, (learned, carried, stats) in enumerate(worlds[2].run(attach_and_resume)):
        assert learned == carried
        (states,) = learned.values()
        assert 0 <= states["weight"]["failure_rate"] < 0.005
        assert stats.learned["weight"].startswith("nested, ")
        assert stats.counts.get("fallbacks", 0) == 0
        assert 0 <= stats.counts["expected_failures"] < 100
        assert (stats.bits_per_value < 2.5) == (rank == 1)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"levels": 0}, "`levels` must be an integer from 1 to 127, got 0"),
        ({"ratio": 4}, "`ratio` must be an odd integer of 3 or more.* got 4; 3 sends the fewest"),
        ({"ratio": 1}, "got 1"),
        ({"ratio": 3.0}, "got 3.0"),
        (
            {"levels": 3, "ratio": 7},
            "saves nothing: the plain code has 7 levels; lower `ratio`, or raise `leve",
        ),
        ({"levels": 1}, "raise `levels` to 2 or more"),
        ({"alpha": 0}, "`alpha` must be above 0 and at most 1, got 0; use 1.0"),
        ({"alpha": 1.5}, "got 1.5"),
        ({"alpha": "half"}, "got 'half'"),
        ({"nested_fraction": 1.0}, r"in \[0, 1\), got 1.0; somebody must send the plain code"),
        ({"max_failures": -0.1}, r"`max_failures` must be in \[0, 1\], got -0.1"),
        ({"block": 100}, "`block` must be a power of two"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        gw.NDQSG(**settings)


def with_feedback(rank):
    with pytest.raises(ValueError, match="leave `error_feedback` out, or use `DQSG`"):
        Reducer(Link(), gw.NDQSG(**PAPER, block=512), error_feedback=True)
    with only_first_warns(rank, "a single all_reduce has nothing to go by"):
        gw.all_reduce(data(0, 20_000), gw.NDQSG(**PAPER, block=4096))
    x = data(0, 20_000)
    COLLECTIVES["all_gather"].reduce(
        Link(), whole([Part(x, 0, gw.NDQSG(**PAPER, block=512).plain)]), KEY
    )
    return x


def test_error_feedback_is_refused_and_single_calls_are_warned_of(worlds):
    first, second = worlds[2].run(with_feedback)
    assert torch.equal(first, second)
