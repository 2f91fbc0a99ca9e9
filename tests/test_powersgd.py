"""The laws of PowerSGD: what an iteration finds, that nothing is lost, and what it survives."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire import kernels
from gradwire.adaptive import Layout
from gradwire.codecs.cast import Floats
from gradwire.codecs.powersgd import Basis
from gradwire.codecs.powersgd.low_rank import LowRank, matrix_shape
from gradwire.collectives import COLLECTIVES
from gradwire.collectives.parts import Part, whole
from gradwire.kernels import cpu, reference
from gradwire.planner.messages import Messages
from gradwire.planner.rates import measure, work_of
from gradwire.reduction.checkpoint import unpack
from gradwire.transport.link import Link
from laws import roundtrip
from world import data

KEY = gw.Key(seed=1, step=2, tensor=3)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def contiguous(*shape):
    return Layout.of(torch.empty(shape))


# Parameters as matrices


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        (torch.empty(6, 8), (6, 8)),
        (torch.empty(8, 6).T, (8, 6)),
        (torch.empty(6, 4, 3, 5), (6, 60)),
        (torch.empty(6, 4, 3, 5).to(memory_format=torch.channels_last), (6, 60)),
        (torch.empty(6, 4, 1, 1).to(memory_format=torch.channels_last), (6, 4)),
        (torch.empty(1, 6, 8), (6, 8)),
        (torch.empty(7), (7, 1)),
        (torch.empty(()), (1, 1)),
    ],
)
def test_a_parameter_is_a_matrix_of_its_slowest_dimension(tensor, shape):
    assert matrix_shape(Layout.of(tensor)) == shape


def test_what_would_be_no_shorter_travels_raw():
    codec = gw.PowerSGD(rank=4)
    for shape, pays in {(8, 8): False, (8, 9): True, (4, 1000): False, (5, 21): True}.items():
        layout = contiguous(*shape)
        assert isinstance(codec.codec_for(codec.start(), layout), LowRank if pays else Floats)
        state = codec.learn(codec.start(), layout, torch.zeros(1), (), owing=True)
        assert codec.describe(state).startswith("compress" if pays else "raw")
        assert codec.share_due(state) == pays
    assert codec.codec_for(codec.start(), Layout.flat(10**6)) == Floats()


# The iteration, in one process


class Iteration:
    """Steps of some workers without error feedback, and what was learned."""

    def __init__(self, codec, *shape):
        self.codec, self.layout, self.state = codec, contiguous(*shape), codec.start()

    def step(self, matrices, number=0):
        key, low = KEY.of(step=number), self.codec.codec_for(self.state, self.layout)
        mean = gw.simulate(low, [m.reshape(-1) for m in matrices], key).view(self.layout.shape)
        before = low.begin(key)
        p = self._mean(low.first, matrices, before, low.shape[0])
        cpu.orthonormalize(p)
        q = self._mean(low.second, matrices, p, low.shape[1])
        self.state = self.codec.learn(
            self.state, self.layout, mean, (low.next_start(before, q),), owing=False
        )
        return mean

    def _mean(self, product, matrices, factor, size):
        """The mean of factors as float32 codes have it."""
        total = torch.zeros(self.codec.rank, size, dtype=torch.float64)
        for matrix in matrices:
            product(matrix, None, factor, own := torch.empty(self.codec.rank, size))
            total += own
        return (total * (1 / len(matrices))).float()


@pytest.mark.parametrize("true_rank", [1, 2, 3, 4])
def test_a_mean_of_low_rank_is_found_at_once(true_rank):
    """Three workers that differ, in the same few directions; of lower ranks no noise is left."""
    left, right = randn(60, true_rank), randn(true_rank, 90, seed=1)
    matrices = [left @ randn(true_rank, true_rank, seed=5 + i) @ right for i in range(3)]
    run, mean = Iteration(gw.PowerSGD(rank=4), 60, 90), torch.stack(matrices).mean(0)
    for step in range(3):
        got = run.step(matrices, step)
        assert (got - mean).norm() < 1e-5 * mean.norm()
        assert run.state.q.isfinite().all()


def spectrum(values, rows, columns):
    """A matrix with these singular values, and its left and right singular vectors."""
    left = torch.linalg.qr(randn(rows, len(values)).double()).Q
    right = torch.linalg.qr(randn(columns, len(values), seed=1).double()).Q
    return ((left * values) @ right.T).float(), left, right


def excess(matrix, approximation, values, rank):
    """By how much the error exceeds that of the best approximation, squared."""
    lost = (matrix.double() - approximation.double()).square().sum()
    return float(lost - values[rank:].square().sum())


def test_it_converges_to_the_best_approximation_as_fast_as_the_law_says():
    """tan(t) <= (s[r] / s[r-1])^(2 steps - 1) tan(0), for the angle to the leading directions.

    A twin that starts from a random factor in every step stays where it was.
    """
    values = 0.7 ** torch.arange(20).double()
    matrix, _, right = spectrum(values, 70, 50)
    codec, rank = gw.PowerSGD(rank=3), 3
    warm, cold = Iteration(codec, 70, 50), Iteration(codec, 70, 50)
    q = codec.codec_for(codec.start(), warm.layout).begin(KEY.of(step=0)).double()
    inside, outside = right[:, :rank].T @ q.T, right[:, rank:].T @ q.T
    tangent = float(torch.linalg.matrix_norm(outside @ torch.linalg.inv(inside), 2))
    for step in range(12):
        allowed = rank * (tangent * float(values[rank] / values[rank - 1]) ** (2 * step + 1)) ** 2
        missed = excess(matrix, warm.step([matrix], step), values, rank)
        assert -1e-6 < missed < min(allowed, 1) + 1e-6
        cold.state = codec.start()
        missed_cold = excess(matrix, cold.step([matrix], step), values, rank)
    assert missed < 1e-6
    assert missed_cold > 1e-3


def test_the_first_factor_is_drawn_from_the_key_and_orthonormal():
    low = LowRank((60, 90), 5, None, gw.Identity())
    q = low.begin(KEY)
    torch.testing.assert_close(q @ q.T, torch.eye(5), rtol=0, atol=1e-6)
    assert torch.equal(q, low.begin(KEY.of(rank=7, hop=2)))
    for other in (KEY.of(seed=9), KEY.of(step=9), KEY.of(tensor=9)):
        assert (q @ low.begin(other).T).abs().max() < 0.6


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1.0, 1e12, 1e25])
def test_the_size_of_gradients_does_not_matter(scale):
    run, twin = Iteration(gw.PowerSGD(), 40, 60), Iteration(gw.PowerSGD(), 40, 60)
    scale = 2.0 ** round(math.log2(scale))
    for step in range(3):
        matrices = [randn(40, 60, seed=10 * step + i) for i in range(2)]
        got, plain = run.step([m * scale for m in matrices], step), twin.step(matrices, step)
        assert torch.equal(got, plain * scale)


def test_zeros_are_zeros_and_teach_nothing():
    run = Iteration(gw.PowerSGD(), 40, 60)
    assert torch.equal(run.step([torch.zeros(40, 60)] * 2), torch.zeros(40, 60))
    first = run.codec.codec_for(run.codec.start(), run.layout).begin(KEY.of(step=0))
    assert torch.equal(run.state.q, first)
    run.step([randn(40, 60)], 1)
    before = run.state.q
    assert torch.equal(run.step([torch.zeros(40, 60)], 2), torch.zeros(40, 60))
    assert torch.equal(run.state.q, before)


def test_directions_that_were_missing_for_a_while_are_found_again():
    """A matrix of rank one leaves three columns as they were; a factor of zeros would stay zero."""
    run = Iteration(gw.PowerSGD(rank=4), 40, 60)
    for step in range(5):
        run.step([randn(40, 1) @ randn(1, 60, seed=1)], step)
    assert run.state.q.any(1).all()
    matrix = randn(40, 4, seed=2) @ randn(4, 60, seed=3)
    assert (run.step([matrix], 9) - matrix).norm() < 1e-4 * matrix.norm()


def test_one_rank_that_is_not_finite_spoils_the_whole_parameter():
    low = gw.PowerSGD().codec_for(Basis(), contiguous(40, 60))
    for poison in (math.inf, -math.inf, math.nan):
        spoilt = randn(2400)
        spoilt[77] = poison
        assert gw.simulate(low, [randn(2400, seed=1), spoilt, randn(2400)], KEY).isnan().all()
    huge = torch.full((2400,), 3e38)
    assert gw.simulate(low, [huge, huge], KEY).isnan().all()


@pytest.mark.parametrize("inner", [None, "fp16", "global-qsgd:bits=8;block=64"])
def test_steps_have_the_bits_of_the_reference(monkeypatch, inner):
    """Not those of a BLAS, which are others on other machines."""
    low = gw.PowerSGD(rank=3, inner=inner).codec_for(Basis(), contiguous(25, 70))
    results = []
    for backend in (cpu, reference):
        monkeypatch.setattr(kernels, "for_device", lambda device, backend=backend: backend)
        mean = gw.simulate(low, [randn(1750), randn(1750, seed=1)], KEY)
        results.append((mean, low.begin(KEY), low.encode(randn(1750), KEY)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_both_factors_draw_random_bits_of_their_own():
    """The second is encoded as what follows the first, at a place where vectors may be cut."""
    for spec in ("powersgd:rank=3,inner=global-qsgd:bits=8;block=1024", "powersgd:inner=bf16"):
        low = gw.parse(spec).codec_for(Basis(), contiguous(50, 70))
        assert low.second_at >= low.sizes[0]
        assert low.second_at % low.inner.grain == 0


def test_payloads_say_what_a_single_worker_would_get():
    low = gw.PowerSGD(rank=2).codec_for(Basis(), contiguous(30, 50))
    x = randn(1500)
    assert torch.equal(roundtrip(low, x, KEY), gw.simulate(low, [x], KEY))
    assert low.encode(x, KEY).numel() == low.max_nbytes(1500) == 4 * 2 * 80
    out = torch.ones(1500)
    low.decode_into(low.encode(x, KEY), out, KEY, weight=0.5, accumulate=True)
    torch.testing.assert_close(out, 1 + roundtrip(low, x, KEY) / 2)


def test_settings_are_checked_with_a_sentence():
    for rank in (0, 257, 2.0, "4"):
        with pytest.raises(ValueError, match="`rank` must be an integer from 1 to 256, got"):
            gw.PowerSGD(rank=rank)
    with pytest.raises(ValueError, match=r"`inner` must be .* can be added, got QSGD.*global-qsgd"):
        gw.parse("powersgd:inner=qsgd:bits=8")
    assert gw.PowerSGD(inner=gw.Identity()) == gw.PowerSGD(inner="none") == gw.PowerSGD()


# On real workers


class Planted(nn.Module):
    """A model whose gradients are whatever is planted."""

    def __init__(self):
        super().__init__()
        conv = torch.zeros(32, 16, 3, 3).to(memory_format=torch.channels_last)
        self.conv = nn.Parameter(conv)
        self.tall = nn.Parameter(torch.zeros(300, 40))
        self.wide = nn.Parameter(torch.zeros(50, 200))
        self.thin = nn.Parameter(torch.zeros(4, 600))
        self.small = nn.Parameter(torch.zeros(5))

    def forward(self, gradients):
        pairs = zip(self.parameters(), gradients, strict=True)
        return sum((p * g).sum() for p, g in pairs)


def planted(step, rank):
    """The convolution has rank 3, in directions that all workers share; others have every rank."""
    seed = 1000 * step + 10 * rank
    taps = randn(32, 3, seed=7) @ randn(3, 3, seed=seed) @ randn(3, 144, seed=8)
    others = (randn(*shape, seed=seed + 1) for shape in ((300, 40), (50, 200), (4, 600), (5,)))
    return [taps.view(32, 16, 3, 3), *others]


def attached(spec, **options):
    ddp = DistributedDataParallel(Planted(), bucket_cap_mb=0.02)
    return ddp, gw.attach(ddp, spec, min_numel=100, **options)


def mean_gradients(ddp, gradients):
    ddp.zero_grad()
    ddp(gradients).backward()
    return [p.grad.clone() for p in ddp.module.parameters()]


def common(handle, spec):
    """The factors of every parameter."""
    states = unpack(handle.state_dict()["learned"]).get(str(gw.parse(spec)), {})
    return {name: state["q"] for name, state in states.items()}


def trained(rank, spec, steps, **options):
    """Per step: means, factors and residuals before it, statistics after it; then the end."""
    ddp, handle = attached(spec, **options)
    rows = []
    for step in range(steps):
        factors, owed = common(handle, spec), handle.state_dict()[f"rank{rank}"]["residuals"]
        means = mean_gradients(ddp, planted(step, rank))
        rows.append((means, factors, owed, handle.stats()))
    buckets = ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")
    end = handle.state_dict()[f"rank{rank}"]["residuals"]
    handle.close()
    return rows, end, len(str(buckets).split(","))


NAMES = ["conv", "tall", "wide", "thin", "small"]
SPECS = ["powersgd", "powersgd:rank=2,inner=fp16", "powersgd:rank=5,inner=global-qsgd:bits=8"]


def told(rows_of_ranks, step, number):
    """What the workers had to send of a parameter in a step, flat, as it lies in memory."""
    found = []
    for rank, rows in enumerate(rows_of_ranks):
        gradient = planted(step, rank)[number]
        if number == 0:
            gradient = gradient.permute(0, 2, 3, 1)
        found.append(gradient.reshape(-1) + rows[step][2].get(NAMES[number], 0.0))
    return found


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_step_on_every_rank_is_what_simulate_says(worlds, size, spec):
    """From factors and residuals as they were, over several buckets."""
    answers = worlds[size].run(trained, spec, 4)
    all_rows = [rows for rows, *_ in answers]
    assert answers[0][2] > 2, "one bucket deadlocks nobody"
    codec = gw.parse(spec)
    for step in range(4):
        means, factors, _, _ = all_rows[0][step]
        for rows in all_rows[1:]:
            assert all(map(torch.equal, rows[step][0], means))
            assert all(
                torch.equal(rows[step][1][name], q) for name, q in factors.items() if q is not None
            )
        for number, layout in enumerate(map(Layout.of, Planted().parameters())):
            low = codec.codec_for(Basis(factors.get(NAMES[number])), layout)
            if isinstance(low, LowRank):
                key = gw.Key(step=step, tensor=number)
                expected = gw.simulate(low, told(all_rows, step, number), key)
                got = means[number].permute(0, 2, 3, 1) if number == 0 else means[number]
                assert torch.equal(got.reshape(-1), expected), (step, NAMES[number])


@pytest.mark.parametrize(
    ("size", "spec"), [(2, SPECS[1]), (2, SPECS[0]), (3, SPECS[0]), (3, SPECS[2])]
)
def test_what_was_delivered_and_what_is_owed_are_all_gradients(worlds, size, spec):
    """Among three, the mean of float16 codes is rounded once more, so there it is left out."""
    steps = 6
    answers = worlds[size].run(trained, spec, steps)
    for number, name in enumerate(NAMES[:3]):
        sent = sum(row[0][number] for row in answers[0][0])
        owed = sum(end[name] for _, end, _ in answers) / size
        owed = owed.view(32, 3, 3, 16).permute(0, 3, 1, 2) if number == 0 else owed.view_as(sent)
        pairs = [(step, rank) for step in range(steps) for rank in range(size)]
        true = sum(planted(step, rank)[number] for step, rank in pairs) / size
        assert owed.norm() > 1e-3 * true.norm() or (number == 0 and spec == SPECS[0])
        torch.testing.assert_close(sent + owed, true, rtol=0, atol=3e-5)


def test_statistics_tell_what_is_compressed_and_how_far(worlds):
    rows, _, _ = worlds[2].run(trained, "powersgd", 2)[0]
    means, *_, stats = rows[1]
    raw = "raw, factors of rank 4 would be no shorter"
    assert stats.learned == dict.fromkeys(NAMES[:3], "compress, rank 4") | {"thin": raw}
    assert stats.raw == ("small",)
    values = 4 * (32 + 144 + 300 + 40 + 50 + 200) + 2400 + 5
    assert stats.bits_per_value == pytest.approx(32 * values / 29_013, rel=1e-6)
    assert stats.bytes_sent == 2 * 4 * values
    true = torch.stack([planted(1, rank)[0] for rank in range(2)]).mean(0)
    assert (means[0] - true).norm() < 1e-5 * true.norm()  # a convolution of rank 3
    assert torch.equal(means[3], (planted(1, 0)[3] + planted(1, 1)[3]) / 2)


def is_same(old, new):
    """What is not there is none, or zeros."""
    if old is None or new is None:
        return not any(each is not None and each.any() for each in (old, new))
    return torch.equal(old, new)


def poisoned(rank, inner):
    """Rank 1 has an inf in the convolution in steps 0 and 3."""
    spec = f"powersgd:inner={inner}"
    ddp, handle = attached(spec)
    seen = []
    for step in range(6):
        gradients = planted(step, rank)
        if step in (0, 3) and rank == 1:
            gradients[0][3, 2, 1, 0] = math.inf
        before = common(handle, spec), handle.state_dict()[f"rank{rank}"]["residuals"]
        means = mean_gradients(ddp, gradients)
        after = common(handle, spec), handle.state_dict()[f"rank{rank}"]["residuals"]
        pairs = [(old.get("conv"), new.get("conv")) for old, new in zip(before, after, strict=True)]
        kept = [is_same(*pair) for pair in pairs]
        seen.append(([bool(m.isfinite().all()) for m in means], bool(means[0].isnan().all()), kept))
    handle.close()
    return seen


@pytest.mark.parametrize("inner", ["none", "global-qsgd:bits=8"])
def test_a_step_that_is_not_finite_leaves_nothing_behind(worlds, inner):
    for seen in worlds[2].run(poisoned, inner):
        for step, (finite, all_nan, kept) in enumerate(seen):
            assert finite == [step not in (0, 3), True, True, True, True]
            assert all_nan == (step in (0, 3))
            assert kept == [all_nan] * 2


def without(rank):
    """In step 2 there are no gradients at all; in step 1 rank 1 has none of the wide matrix."""
    ddp, handle = attached("powersgd")
    rows = []
    for step in range(4):
        gradients = [0 * g if step == 2 else g for g in planted(step, rank)]
        if step == 1 and rank == 1:
            gradients[2] = 0 * gradients[2]
        before = handle.state_dict()[f"rank{rank}"]["residuals"].get("wide")
        means = mean_gradients(ddp, gradients)
        owed = handle.state_dict()[f"rank{rank}"]["residuals"]["wide"]
        rows.append((means, before, owed, common(handle, "powersgd")))
    handle.close()
    return rows


def test_workers_without_gradients_keep_what_they_owe(worlds):
    for rank, rows in enumerate(worlds[2].run(without)):
        assert all(torch.equal(mean, torch.zeros_like(mean)) for mean in rows[2][0])
        assert all(mean.isfinite().all() for row in rows for mean in row[0])
        kept = [torch.equal(before, owed) for _, before, owed, _ in rows[1:]]
        assert kept == [rank == 1, True, False]
        for name in NAMES[:3]:
            assert torch.equal(rows[1][3][name], rows[2][3][name])
            assert not torch.equal(rows[2][3][name], rows[3][3][name])


def narrow(rank, x, residual):
    """A gradient of any type through the collective itself: what was sent, what is owed, told and
    seen."""
    before, heard = x.float() + residual, []
    low = gw.PowerSGD().codec_for(Basis(), contiguous(40, 60))
    part = Part(x, 3, low, residual=residual, watch=lambda *said: heard.extend(said))
    ((_, seen),) = COLLECTIVES["low_rank"].reduce(Link(), whole([part]), KEY)
    return before, x, residual, heard, seen


def narrow_noise(rank, dtype):
    return narrow(rank, data(rank, 2400).to(dtype), data(rank, 2400, seed=5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradients_of_other_types_are_followed(worlds, dtype):
    answers = worlds[2].run(narrow_noise, dtype)
    low = gw.PowerSGD().codec_for(Basis(), contiguous(40, 60))
    expected = gw.simulate(low, [before for before, *_ in answers], KEY)
    for before, x, residual, (start, source, lost), (q,) in answers:
        assert torch.equal(x, expected.to(dtype))
        assert start == 0
        assert torch.equal(source, before)
        torch.testing.assert_close(lost, residual, rtol=0, atol=1e-6)
        assert 0.1 < residual.norm() / before.norm() < 1
        assert torch.equal(q, answers[0][4][0])


def narrow_large(rank):
    """Float16 holds the gradient, but not what is owed as well."""
    return narrow(rank, torch.full((2400,), 6e4).half(), 1e4 + data(rank, 2400))


def test_a_mean_that_float16_cannot_hold_changes_nothing(worlds):
    for rank, (_, x, residual, _, seen) in enumerate(worlds[2].run(narrow_large)):
        assert x.isinf().any()
        assert torch.equal(residual, 1e4 + data(rank, 2400))
        assert seen == ()


def rehearsed(rank):
    """The plan of a square matrix, and the bytes of three steps of it."""
    ddp = DistributedDataParallel(nn.Linear(1024, 1024, bias=False))
    handle = gw.attach(ddp, "powersgd")
    for step in range(3):
        ddp(data(rank, 4 * 1024, seed=step).view(4, 1024)).square().mean().backward()
    row, sent = handle.plan().rows[0], handle.stats().bytes_sent / 3
    handle.close()
    return row, sent


@pytest.mark.parametrize("size", [2, 3])
def test_plans_know_how_much_is_sent(worlds, size):
    for row, sent in worlds[size].run(rehearsed):
        assert (row.collective, row.bits) == ("low_rank", 32 * 4 * 2 * 1024 / 2**20)
        assert sent == pytest.approx(2**20 * sum(Messages("powersgd", size).per_value()), rel=2e-3)


def test_the_planner_takes_it_for_two_rounds():
    found = measure("powersgd", 1 << 16)
    assert found.bytes_per_value == 4 * 4 * 512 / 2**16
    work = work_of(found, 4)
    assert work.whole and work.in_turn
    assert work.ask_s == work.first_s == found.encode / 2
    assert work.ask_bytes == work.first_bytes + work.middle_bytes


def refused(rank):
    ddp = DistributedDataParallel(nn.Linear(100, 200))
    with pytest.raises(ValueError, match="travels by code_reduce, got `collective='all_gather'`"):
        gw.attach(ddp, "powersgd", collective="all_gather")
    with pytest.raises(ValueError, match="learns over many steps"):
        gw.all_reduce(torch.zeros(100, 100), "powersgd")


def test_what_makes_no_sense_is_refused(worlds):
    worlds[2].run(refused)
    with pytest.raises(TypeError, match="has no factors; leave `collective` out"):
        COLLECTIVES["low_rank"].check(gw.QSGD(), 2)
    assert replace(gw.PowerSGD(), rank=2) == gw.parse("powersgd:rank=2")
