"""The laws of SparseLoCo's codec: the largest are kept, the levels are best, and it contracts."""

import math
import struct

import numpy as np
import pytest
import torch

import gradwire as gw
from gradwire import collectives, kernels
from gradwire.codecs.gaps import best_rice, bitmap_nbytes, max_gaps_nbytes, read_gaps, write_gaps
from gradwire.kernels import cpu, reference
from gradwire.kernels.formats.levels import LAST_STEP, REACH, TOP, rise
from gradwire.kernels.reference import levels as reference_levels
from gradwire.lab.tasks import TASKS
from gradwire.reduction.reducer import Reducer
from gradwire.transport.link import Link
from laws import reduce_now, roundtrip
from world import data

KEY = gw.Key()
SETTINGS = ["topk", "topk:bits=1", "topk:density=0.03125", "topk:density=0.125,block=65536",
            "topk:density=0.03,bits=1,block=512", "topk:density=0.1,block=8"]  # fmt: skip


def gaussian(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def tails(numel):
    random = np.random.default_rng(0)
    drawn = {
        "Gaussian": random.standard_normal(numel),
        "Laplace": random.laplace(size=numel),
        "Student": random.standard_t(3, size=numel),
    }
    return {name: torch.from_numpy(x).float() for name, x in drawn.items()}


# What is kept


def wanted(codec, x):
    """Which values must be kept: by magnitude, then by place; and how many of each block."""
    chosen = torch.zeros(x.numel(), dtype=torch.bool)
    for start in range(0, x.numel(), codec.block):
        part = x[start : start + codec.block].abs().tolist()
        count = math.ceil(len(part) * codec.count / codec.block)
        order = sorted(range(len(part)), key=lambda i: (-part[i], i))
        chosen[[start + i for i in order[:count] if part[i] > 0]] = True
    return chosen


@pytest.mark.parametrize("spec", SETTINGS)
@pytest.mark.parametrize("numel", [1, 9, 4096, 10_000])
def test_exactly_the_largest_of_every_block_are_kept(spec, numel):
    """Of distinct values, of ties, of values that are all equal, and of a few among zeros."""
    codec, x = gw.parse(spec), gaussian(numel)
    few = torch.where(torch.arange(numel) % 1237 == 5, x, 0.0)
    for vector in (x, x.round() + 0.25, (x * 2).round(), torch.full((numel,), -3.0), few):
        y, chosen = roundtrip(codec, vector), wanted(codec, vector)
        assert torch.equal(y != 0, chosen)
        assert torch.equal(y[chosen].sign(), vector[chosen].sign())


@pytest.mark.parametrize(
    ("density", "block", "count"),
    [(0.015625, 4096, 64), (0.01, 4096, 41), (0.07, 128, 9), (0.1, 8, 1), (1e-9, 4096, 1)],
)
def test_the_count_is_the_density_of_a_block_rounded_up(density, block, count):
    codec = gw.TopK(density, block=block)
    assert codec.count == count
    assert int((roundtrip(codec, gaussian(block)) != 0).sum()) == count


def test_density_is_the_decimal_that_it_is_written_as():
    """0.07 * 100 is above 7 in floats."""
    assert [gw.TopK(0.0625 + i / 1000, block=8192).count for i in (0, 1)] == [512, 521]
    assert gw.TopK(0.003, block=1 << 15).count == math.ceil(3 * 2**15 / 1000)


def test_what_is_added_to_is_touched_only_where_values_are_kept():
    codec, x, base = gw.TopK(), gaussian(20_000), gaussian(20_000, seed=1)
    out = base.clone()
    codec.decode_into(codec.encode(x, KEY), out, KEY, weight=-0.5, accumulate=True)
    chosen = wanted(codec, x)
    assert torch.equal(out[~chosen], base[~chosen])
    assert torch.equal(out, base - 0.5 * roundtrip(codec, x))


def test_types_are_widened():
    for dtype in (torch.float16, torch.bfloat16):
        x = gaussian(9000).to(dtype)
        assert torch.equal(gw.TopK().encode(x, KEY), gw.TopK().encode(x.float(), KEY))


# Levels


def fitted(rows, bits=2):
    """The levels of rows of values, each once with all its bits: (lower, upper), as float64."""
    levels = torch.empty(2 * len(rows), dtype=torch.uint8)
    codes = torch.empty(bits * -(-rows.numel() // 8), dtype=torch.uint8)
    cpu.fit_levels(rows, levels, codes, bits=bits)
    words = torch.from_numpy(levels.numpy().view(np.uint16).astype(np.int64))
    rises = torch.tensor([rise(step) for step in range(LAST_STEP + 1)])
    marks = words >> 5, (words >> 5) + rises[words & 31]
    return [(mark << 20).to(torch.int32).view(torch.float32).double() for mark in marks]


def best_means(row):
    """The means of the two groups that leave the smallest square error, by trying all cuts."""
    falling = np.sort(np.abs(row.double().numpy()))[::-1]
    cuts = [(falling[:j], falling[j:]) for j in range(1, len(falling))]
    upper, lower = min(cuts, key=lambda pair: sum(len(part) * part.var() for part in pair))
    return lower.mean(), upper.mean()


@pytest.mark.parametrize("name", ["Gaussian", "Laplace", "Student"])
def test_levels_are_the_means_of_the_best_groups_on_their_marks(name):
    rows = tails(100 * 64)[name].view(100, 64)
    for lower, upper, row in zip(*fitted(rows), rows, strict=True):
        low, high = best_means(row)
        assert abs(lower - low) <= low / 17 * (1 + 1e-6)
        assert abs(upper - high) <= high * (1 / 17 if high < 3.5 * low else 1 / 3)


def test_one_bit_has_the_mean():
    rows = gaussian(6400).view(100, 64)
    lower, _ = fitted(rows, bits=1)
    mean = rows.double().abs().mean(1)
    assert ((lower - mean).abs() <= mean / 17 * (1 + 1e-6)).all()


def test_levels_that_are_too_far_apart_come_as_near_as_they_must():
    """The upper one counts: it has most of the energy."""
    rows = torch.ones(3, 64)
    rows[:, 7] = torch.tensor([600.0, 1e4, 1e30])
    lower, upper = fitted(rows)
    assert lower[0] == 1
    assert ((upper / rows[:, 7] - 1).abs() <= 1 / 17).tolist() == [False, True, True]
    assert ((upper / rows[:, 7] - 1).abs() <= 1 / 3).all()
    assert (upper[1:] / lower[1:] > 2.0 ** (REACH // 8)).all()


def test_a_value_goes_to_the_nearer_level():
    codec, x = gw.TopK(), tails(8192)["Student"]
    y = roundtrip(codec, x)
    for part, said in zip(x.split(4096), y.split(4096), strict=True):
        levels = said[said != 0].abs().unique()
        distance = (part[said != 0].abs()[:, None] - levels).abs()
        assert len(levels) == 2
        assert torch.equal((part - said)[said != 0].abs(), distance.amin(1))


# Contraction


def hard_blocks(codec):
    """Blocks for which little is captured: of one magnitude, with spikes, at the marks' middles.

    What is dropped is as large as the smallest that is kept, or nothing.
    """
    k, m = codec.count, codec.block
    i = torch.arange(1, k + 1).double()
    tops = [
        torch.full((k,), 1.0625),
        torch.full((k,), 1.0624),
        torch.full((k,), 1.75 + 2.0**-20),
        1 + torch.arange(k) * 1e-6,
        i.rsqrt(),
        1 / i,
        2.0 ** -i.clamp_max(60),
        torch.where(i == 1, 1e6, 1.0),
        torch.where(i == 1, 40.0, 1.0),
        torch.where(i == 1, 5.4, 1.0),
        torch.where(i <= k / 2, 3.1e38, 2.9e38),
        torch.full((k,), torch.finfo(torch.float32).max),
    ]
    tops += [top * scale for top in tops[4:7] for scale in (1e-5, 1e9)]
    tops += [torch.exp(spread * gaussian(k, seed)).sort(descending=True).values.double()
             for seed, spread in enumerate((0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0))]  # fmt: skip
    for top in tops:
        for rest in (float(top[-1]), 0.0):
            yield torch.cat((top, torch.full((m - k,), rest))).float()
    yield gaussian(m)


def worst_ratio(codec):
    """The largest share of the energy that is left, as a share of what the law allows."""
    ratios = []
    for x in hard_blocks(codec):
        for vector in (x, x[: codec.block * 3 // 5]):
            error = (roundtrip(codec, vector).double() - vector.double()).square().sum()
            ratios.append(float(error / vector.double().square().sum()) / allowed(codec))
    return max(ratios)


def allowed(codec):
    return 1 - (1 - 2.0**-8) * codec.density


@pytest.mark.parametrize("spec", SETTINGS)
def test_it_contracts_every_vector_by_its_density(spec):
    """And cannot do better: of values of one magnitude, what is dropped is lost."""
    codec = gw.parse(spec)
    assert codec.bits > 1 or codec.count**2 <= codec.block
    assert (1 - codec.count / codec.block) / allowed(codec) <= worst_ratio(codec) <= 1


def test_one_bit_is_not_enough_for_a_spike_among_many():
    """The law asks for k^2 <= block with one bit; two bits meet it."""
    assert worst_ratio(gw.TopK(0.125, bits=1)) > 1
    assert worst_ratio(gw.TopK(0.125, bits=2)) <= 1


def next_mark(mean):
    return (reference_mark(mean) + 1).clamp_max(TOP)


def middle_cut(falling, numbers, bits):
    """Two groups of as many values each."""
    half = torch.full_like(falling, 0.0)
    half[:, : falling.shape[1] // 2] = 1.0
    upper = reference_mark((falling * half).sum(1) / half.sum(1))
    lower = reference_mark((falling * (1 - half)).sum(1) / (1 - half).sum(1).clamp_min(1))
    return reference_levels._word(lower, upper)


reference_mark = reference_levels._mark


@pytest.mark.parametrize(("name", "twin"), [("_mark", next_mark), ("_fit", middle_cut)])
def test_the_test_of_contraction_rejects_other_levels(name, twin, monkeypatch):
    """Rounded up, or those of a cut in the middle."""
    monkeypatch.setattr(kernels, "for_device", lambda device: reference)
    codec = gw.TopK(0.03125)
    assert worst_ratio(codec) <= 1
    monkeypatch.setattr(reference_levels, name, twin)
    assert worst_ratio(codec) > 1


def test_the_test_of_contraction_rejects_other_values(monkeypatch):
    """The first that reach half the threshold, say."""
    select = cpu.largest_of_blocks

    def halved(x, bitmap, kept, *, block):
        top = x.abs().sort(descending=True).values[kept.shape[1] - 1]
        select(torch.where(x.abs() >= top / 2, x.sign(), 0.0), bitmap, kept, block=block)
        places = np.flatnonzero(np.unpackbits(bitmap.numpy(), bitorder="little"))
        kept.view(-1)[: len(places)] = x[places]

    monkeypatch.setattr(cpu, "largest_of_blocks", halved)
    x = torch.where(torch.arange(4096) < 4000, 0.6, 1.0) * gaussian(4096).sign()
    error = (roundtrip(gw.TopK(), x) - x).double().square().sum() / x.double().square().sum()
    assert error > allowed(gw.TopK())


def test_half_harmonic_sums_bound_what_two_levels_capture():
    """max_j S_j^2 / j >= sum c^2 / l_k, l_k = sum_j 1 - sqrt(1 - 1 / j), for falling c."""
    for k in (2, 64, 700):
        bound = sum(1 - math.sqrt(1 - 1 / j) for j in range(1, k + 1))
        j = np.arange(1, k + 1)
        random = np.random.default_rng(k)
        for c in (j**-0.5, 1 / j, np.ones(k), np.sort(random.pareto(0.7, k))[::-1], j == 1):
            assert (np.cumsum(c) ** 2 / j).max() >= (c * c).sum() / bound * (1 - 1e-12)
    most = sum(1 - math.sqrt(1 - 1 / j) for j in range(1, 8193))
    assert 0.125 * most < 0.68  # at the largest density and block


# Error feedback


@pytest.mark.parametrize("spec", ["topk:density=0.125,block=64", "topk:density=0.03125,block=512"])
def test_what_is_owed_falls_as_the_law_says(spec):
    """Given nothing new, residuals lose their density at every step, until nothing is left."""
    codec = gw.parse(spec)
    owed = tails(5000)["Laplace"]
    bound = float(owed.double().square().sum())
    for _ in range(400):
        codec.subtract(codec.encode(owed, KEY), owed, KEY)
        bound *= allowed(codec)
        assert float(owed.double().square().sum()) <= bound * (1 + 1e-5)
    assert bound < 4e-5 * 5000


def repeated(rank, spec, steps):
    """The mean over `steps` of the results for the same gradients, and the largest residual."""
    reducer = Reducer(Link(), gw.parse(spec), min_numel=0)
    total, x = torch.zeros(9000), data(rank, 9000)
    for _ in range(steps):
        y = x.clone()
        reduce_now(reducer, y)
        total += y
    owed = float(reducer.residuals.of("0", 9000).norm() / x.norm())
    return reducer.route.error_feedback, total / steps, owed


def test_error_feedback_is_on_and_delivers_everything_in_time(worlds):
    """The mean result after T steps misses the mean gradient by what is owed, over T."""
    answers, steps = worlds[2].run(repeated, "topk:density=0.1,block=1024", 60), 60
    mean = (data(0, 9000) + data(1, 9000)) / 2
    assert all(on for on, _, _ in answers)
    assert all(torch.equal(answers[0][1], result) for _, result, _ in answers)
    owed = max(each for _, _, each in answers)
    assert owed < 20
    missed = (answers[0][1] - mean).norm()
    assert missed <= owed * data(0, 9000).norm() / steps * 1.01
    assert missed < 0.3 * (roundtrip(gw.TopK(0.1, block=1024), mean) - mean).norm()


def test_payloads_are_gathered_by_default():
    assert collectives.choose(gw.TopK(), 8).name == "all_gather"


# Size


def changes(name, steps):
    """The gradients of a task of the lab after some steps, and how its weights have changed."""
    task = TASKS[name]
    torch.manual_seed(0)
    model, train = task.model(), task.data(None).train
    optimizer, _ = task.optimize(model.parameters(), task.lr, steps)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(steps):
        batch = torch.randint(0, len(train), (task.batch,))
        optimizer.zero_grad()
        task.loss(model(train.inputs[batch]), train.targets[batch]).backward()
        optimizer.step()
    large = [(p, old) for p, old in zip(model.parameters(), before, strict=True)
             if p.numel() >= 10_000]  # fmt: skip
    gradient = torch.cat([p.grad.flatten() for p, _ in large])
    return gradient, torch.cat([(p.detach() - old).flatten() for p, old in large])


def bits_a_value(codec, x):
    return 8 * codec.encode(x, KEY).numel() / x.numel()


def test_at_most_16_hundredths_of_a_bit_at_a_density_of_one_in_64():
    for x in (*tails(1 << 20).values(), *changes("mnist-cnn", 5), *changes("gpt-char", 3)):
        assert 0.145 < bits_a_value(gw.TopK(), x) <= 0.16
        assert bits_a_value(gw.TopK(bits=1), x) <= 0.16 - 1 / 64


@pytest.mark.parametrize("density", [0.001, 1 / 64, 1 / 32, 0.125])
def test_places_of_independent_values_cost_near_their_entropy(density):
    codec, n = gw.TopK(density), 1 << 20
    payload = codec.encode(gaussian(n), KEY)
    p = codec.count / codec.block
    entropy = -(p * math.log2(p) + (1 - p) * math.log2(1 - p))
    assert 0.97 * entropy < 8 * codec.anatomy(payload, n)["gaps"] / n < 1.03 * entropy


def test_zeros_cost_their_levels_and_no_more():
    assert gw.TopK().encode(torch.zeros(1 << 20), KEY).numel() == 8 + 2 * 256


def awkward_places(codec, numel):
    """Kept values at the start of one block and at the end of the next, in one block, nowhere."""
    m = codec.block
    i = torch.arange(numel)
    ramp = 1.0 + i % m
    turns = torch.where(i // m % 2 == 0, ramp, m + 1.0 - i % m)
    return [ramp, turns, torch.where(i // m % 64 == 63, turns, 0.0), (i == numel - 1).float()]


@pytest.mark.parametrize("spec", SETTINGS)
def test_no_payload_is_longer_than_is_said(spec):
    codec = gw.parse(spec)
    for numel in (1, 100, 4097, 300_000):
        for x in (*awkward_places(codec, numel), gaussian(numel)):
            assert codec.encode(x, KEY).numel() <= codec.max_nbytes(numel)
    assert codec.max_nbytes(1 << 20) < 1.2 * codec.encode(gaussian(1 << 20), KEY).numel()


@pytest.mark.parametrize(
    "places",
    [[], [0], [2**21 - 1], [0, 2**21 - 1], [1, 2, 3], list(range(64)), [2**20], [63, 64, 2**18],
     list(range(0, 2**21, 2**15))],
)  # fmt: skip
def test_places_come_back_however_far_apart(places):
    numel, kept = 1 << 21, len(places)
    bits = np.zeros(numel, bool)
    bits[places] = True
    bitmap = torch.from_numpy(np.packbits(bits, bitorder="little"))
    rice, nbytes = best_rice(bitmap, kept)
    gaps, again = torch.empty(nbytes).byte(), torch.empty(bitmap_nbytes(numel)).byte()
    write_gaps(bitmap, kept, rice, gaps)
    assert nbytes <= max_gaps_nbytes(numel, kept)
    assert read_gaps(gaps, again, kept=kept, rice=rice, numel=numel)
    assert torch.equal(again, bitmap)
    assert not read_gaps(gaps, again, kept=kept + 1, rice=rice, numel=numel)


# Damage


@pytest.mark.parametrize("spec", ["topk:block=1024", "topk:density=0.125,bits=1,block=64"])
def test_damaged_payloads_are_refused_or_decoded_but_never_more(spec):
    """Every byte of head and levels at many values, random bytes elsewhere, and any cut."""
    codec, x = gw.parse(spec), gaussian(3000)
    x[700] = float("inf")
    payload = codec.encode(x, KEY)
    generator = torch.Generator().manual_seed(0)
    anywhere = torch.randint(0, payload.numel(), (300,), generator=generator)
    places = [*range(14)] * 20 + anywhere.tolist()
    refused = 0
    for place in places:
        damaged = payload.clone()
        damaged[place] ^= int(torch.randint(1, 256, (), generator=generator))
        out = torch.full((3000,), 7.0)
        try:
            codec.decode_into(damaged, out, KEY, accumulate=True)
        except ValueError:
            refused += 1
            assert (out == 7.0).all(), "what is refused must leave no trace"
    assert refused > 100
    for size in [*range(20), payload.numel() // 2, payload.numel() - 1]:
        with pytest.raises(ValueError, match=r"expected|damaged"):
            codec.decode(payload[:size], 3000, KEY)
    with pytest.raises(ValueError, match=r"expected|damaged"):
        codec.decode(payload, 1500, KEY)


@pytest.mark.parametrize(
    ("word", "bits", "whole"),
    [(0, 2, True), (2039 << 5, 2, True), (2040 << 5, 2, True), (2040 << 5, 1, True),
     (2039 << 5 | 1, 2, False), (2040 << 5 | 1, 2, False), (2041 << 5, 2, False),
     (2023 << 5 | 16, 2, True), (2023 << 5 | 17, 2, False), (1963 << 5 | 31, 2, True),
     (1964 << 5 | 31, 2, False), (100 << 5 | 1, 1, False), (65535, 2, False)],
)  # fmt: skip
def test_levels_are_finite_or_refused(word, bits, whole):
    codec = gw.TopK(bits=bits)
    payload = codec.encode(torch.cat((torch.ones(1), torch.zeros(99))), KEY)
    payload[8:10] = torch.tensor(list(struct.pack("<H", word)))
    if whole:
        y = codec.decode(payload, 100, KEY)
        assert y.isnan().all() if word == 2040 << 5 else y.isfinite().all()
    else:
        with pytest.raises(ValueError, match="levels are damaged: not all of them are finite"):
            codec.decode(payload, 100, KEY)


def test_a_payload_may_lie_at_an_odd_address():
    codec, x = gw.TopK(), gaussian(9000)
    payload = codec.encode(x, KEY)
    shifted = torch.empty(payload.numel() + 3, dtype=torch.uint8)[3:]
    shifted.copy_(payload)
    assert torch.equal(codec.decode(shifted, 9000, KEY), codec.decode(payload, 9000, KEY))


# Settings


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"density": 0.0}, r"`density` must be above 0 and at most 0\.125, got 0\.0; .* `dqsg`"),
        ({"density": 0.13}, "got 0.13"),
        ({"density": 1}, "got 1;"),
        ({"density": float("nan")}, "got nan"),
        ({"density": None}, "got None"),
        ({"density": "0.1@0"}, "got '0.1@0'"),
        ({"bits": 3}, "`bits` must be 1 or 2, got 3"),
        ({"bits": True}, "got True"),
        ({"bits": None}, "got None"),
        ({"block": 100}, "`block` must be a power of two from 8 to 65536, got 100"),
        ({"block": 4}, "got 4"),
        ({"block": 1 << 17}, "got 131072"),
        ({"block": None}, "got None"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        gw.TopK(**settings)
