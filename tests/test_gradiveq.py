"""The laws of GradiVeQ: what its subspace keeps, that it commutes with sums, when it retrains."""

import io
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire import kernels
from gradwire.adapters.ddp.handle import DDPHandle
from gradwire.adaptive import AffineCodec, Layout
from gradwire.codecs.cast import Floats
from gradwire.codecs.gradiveq.axes import cheapest_axes, principal_axes
from gradwire.codecs.gradiveq.projection import Projection
from gradwire.codecs.gradiveq.slicing import Slicing
from gradwire.kernels import cpu, reference
from gradwire.reduction.checkpoint import pack, unpack
from laws import roundtrip

KEY = gw.Key(seed=1, step=2, tensor=3)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def contiguous(*shape):
    return Layout.of(torch.empty(shape))


# Slices


def test_convolutions_are_walked_in_the_order_of_the_paper():
    F, D, H, W = 4, 3, 2, 5
    weight = torch.arange(F * D * H * W).float().view(F, D, H, W)
    slices, tail = Slicing(contiguous(F, D, H, W), F * D).cut(weight.view(-1))
    assert slices.shape == (H * W, F * D)
    assert tail.numel() == 0
    for f, delta, h, w in ((0, 0, 0, 0), (3, 1, 0, 4), (2, 2, 1, 3)):
        at = ((h * W + w) * D + delta) * F + f
        assert slices.view(-1)[at] == weight[f, delta, h, w]


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (4, 8, 1, 1), (6, 7), (6, 4, 3), (97,)])
@pytest.mark.parametrize("last", [False, True])
def test_slices_do_not_depend_on_strides_and_come_back(shape, last):
    weight = randn(*shape)
    plain, plain_tail = Slicing(contiguous(*shape), 10).cut(weight.reshape(-1))
    if last and len(shape) == 4:
        weight = weight.to(memory_format=torch.channels_last)
    layout = Layout.of(weight)
    flat = weight.as_strided((weight.numel(),), (1,)).clone()  # as it lies in a bucket
    slices, tail = Slicing(layout, 10).cut(flat)
    assert torch.equal(slices, plain)
    assert torch.equal(tail, plain_tail)
    back = torch.empty_like(flat)
    Slicing(layout, 10).restore(torch.cat((slices.reshape(-1), tail)), back)
    assert torch.equal(back, flat)


def test_slices_are_whole_taps_or_rows():
    assert Slicing.of(contiguous(32, 16, 5, 5), 512).size == 512
    assert Slicing.of(contiguous(32, 16, 5, 5), 513).size == 1024
    assert Slicing.of(contiguous(64, 100), 512).size == 600
    assert Slicing.of(contiguous(64, 100, 1, 1), 512).size == 600
    assert Slicing.of(contiguous(64, 100), 10**6).size == 6400
    assert Slicing.of(contiguous(10_001), 512).count == 19


def test_strides_that_are_not_dense_are_those_of_a_contiguous_tensor():
    assert Layout.of(torch.empty(6, 8)[:, ::2]).stride == (4, 1)
    assert Layout.of(torch.empty(8, 6).T).stride == (1, 6)


# Axes


def low_rank(rows, width, rank, noise=0.0, seed=0):
    axes = randn(rank, width, seed=100)
    return randn(rows, rank, seed=seed) @ axes + noise * randn(rows, width, seed=seed + 1)


@pytest.mark.parametrize(("width", "noise"), [(700, 0.0), (700, 0.3), (90, 0.3), (20_000, 0.1)])
def test_axes_are_orthonormal_and_the_fewest_that_keep_the_energy(width, noise):
    seen, held_out = low_rank(60, width, 8, noise), low_rank(30, width, 8, noise, seed=5)
    axes = principal_axes(seen, held_out, 0.9)
    count = len(axes)
    assert 0 < count <= 8
    torch.testing.assert_close(axes @ axes.T, torch.eye(count), rtol=0, atol=1e-5)
    kept = (held_out.double() @ axes.double().T).square().sum(0) / held_out.double().square().sum()
    assert kept.sum() >= 0.9 - 1e-6
    assert kept[:-1].sum() < 0.9
    U = torch.linalg.svd(seen.double(), full_matrices=False)[2][:count]
    angles = torch.linalg.svdvals(U @ axes.double().T)
    torch.testing.assert_close(angles, torch.ones_like(angles), rtol=0, atol=1e-5)


def test_white_noise_has_no_axes_but_passes_the_test_of_the_paper():
    """Held-out energy refuses it; in-sample energy, eq. (6), finds 97 axes and a ratio of 8."""
    noise = randn(133, 768)
    assert len(principal_axes(noise[:100], noise[100:], 0.99)) == 0
    assert len(principal_axes(noise[:100], noise[100:], 0.5)) == 0
    assert 90 < len(principal_axes(noise[:100], noise[:100], 0.99)) < 100
    few = randn(300, 32, seed=2)  # more samples than values: all axes are found, and refused
    assert len(principal_axes(few[:225], few[225:], 0.99)) == 0


def test_slices_of_a_hundred_thousand_values():
    seen, held_out = low_rank(48, 100_000, 5), low_rank(16, 100_000, 5, seed=5)
    assert principal_axes(seen, held_out, 0.99).shape == (5, 100_000)


def test_slices_that_never_change_are_left_alone():
    assert len(principal_axes(torch.zeros(20, 50), torch.zeros(10, 50), 0.9)) == 0


def local(rows, seed=0):
    """Rows of eight runs of 64 values, each of which lies in the same four dimensions."""
    return (randn(8 * rows, 4, seed=seed) @ randn(4, 64, seed=100)).view(rows, 512)


def test_slices_are_shorter_where_that_costs_less():
    """Four axes do for 64 values what 32 do for 512; rows that are alike only as a whole stay."""
    lengths = Slicing(contiguous(200, 512), 512).lengths
    assert lengths == [512, 256, 128, 64, 32]
    short = cheapest_axes(local(90), local(30, seed=5), 0.99, lengths)
    assert short.shape == (4, 64)
    assert len(cheapest_axes(local(90), local(30, seed=5), 0.99, [512])) == 32
    whole_rows = low_rank(90, 512, 8), low_rank(30, 512, 8, seed=5)
    assert cheapest_axes(*whole_rows, 0.99, lengths).shape == (8, 512)
    noise = randn(90, 512), randn(30, 512, seed=5)
    assert len(cheapest_axes(*noise, 0.99, lengths)) == 0


def test_shorter_slices_take_up_the_tail_that_filled_no_long_one():
    codec, layout = replace(SHORT, slice=512, warmup_steps=0), contiguous(4160)
    state, vectors = codec.start(), [local(9, seed=step).view(-1)[:4160] for step in range(9)]
    for vector in vectors[:8]:
        state = codec.learn(state, layout, vector, (), owing=True)
    assert state.samples[0].shape[1] == 512  # 8 slices, and a tail of 64 values
    state = codec.adopt(state, layout, codec.fit(state, layout))
    assert state.basis.shape == (4, 64)
    assert state.mean.shape == (65, 64)
    y = roundtrip(codec.codec_for(state, layout), vectors[8])
    torch.testing.assert_close(y, vectors[8], rtol=0, atol=1e-4)


# The projection


def projection(inner=None, shape=(8, 6, 5, 5), rank=7, size=96, seed=0):
    slicing = Slicing(contiguous(*shape), size)
    basis = torch.linalg.qr(randn(size, rank, seed=seed))[0].T.contiguous()
    mean = randn(slicing.count, size, seed=seed + 1)
    return Projection(slicing, basis, mean, inner or gw.Identity())


def image_of(codec, x):
    image = torch.empty(codec.image_numel)
    codec.project(x, image)
    return image


def mean_of(codec, vectors):
    """The images reduced, and expanded: what `image_reduce` does over a link."""
    out = torch.empty(1200)
    images = [image_of(codec, x) for x in vectors]
    codec.expand(gw.simulate(codec.through, images, KEY, "code_reduce"), out)
    return out


def expected(codec, x):
    """U U^T (x - mu) + mu in float64, the tail as it is."""
    slices, tail = codec.slicing.cut(x)
    U, mu = codec.basis.double(), codec.mean.double()
    kept = (slices - mu) @ U.T @ U + mu
    out = torch.empty(x.numel(), dtype=torch.float64)
    codec.slicing.restore(torch.cat((kept.reshape(-1), tail.double())), out)
    return out


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_it_commutes_with_the_mean(world):
    codec = projection()
    vectors = [randn(1200, seed=10 + rank) for rank in range(world)]
    mean = torch.stack(vectors).mean(0)
    got = mean_of(codec, vectors)
    torch.testing.assert_close(got.double(), expected(codec, mean), rtol=0, atol=3e-6)
    assert (got - mean).norm() > 0.5 * mean.norm()  # and it is not the identity


def test_it_is_a_projection():
    codec, x = projection(), randn(1200, seed=9)
    y = roundtrip(codec, x)
    torch.testing.assert_close(roundtrip(codec, y), y, rtol=0, atol=3e-6)
    error, tail = codec.slicing.cut(x - y)
    assert torch.equal(tail, torch.zeros(48))
    torch.testing.assert_close(error @ codec.basis.T, torch.zeros(12, 7), rtol=0, atol=1e-5)


INNERS = [None, gw.Cast("fp16"), gw.Cast("bf16"), gw.GlobalQSGD(norm="l2", block=64)]


@pytest.mark.parametrize("inner", [*INNERS, gw.GlobalQSGD(bits=8, dither="subtractive")])
def test_what_codes_say_and_what_was_lost_are_the_vectors(inner):
    """What this worker's own codes say is taken off its vector, for those who watch."""
    codec, world = projection(inner), 2
    through, numel = codec.through, codec.image_numel
    vectors = [randn(1200, seed=20 + rank) for rank in range(world)]
    images = [image_of(codec, x) for x in vectors]
    statistics = [through.statistics(y) for y in images]
    shared = torch.maximum(*statistics) if through.statistics_op == "max" else sum(statistics)
    lost = []
    for rank, (x, image) in enumerate(zip(vectors, images, strict=True)):
        adder, own, minus = through.adder(world, shared), KEY.of(rank=rank), torch.zeros(numel)
        code = torch.empty(adder.code_nbytes(numel), dtype=torch.uint8)
        adder.encode(image, code, own)
        adder.subtract(code, minus, own)
        lost.append(x.clone())
        codec.subtract_image(minus, lost[-1])
    total = mean_of(codec, vectors) + torch.stack(lost).mean(0)
    torch.testing.assert_close(total, torch.stack(vectors).mean(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 6, 5, 5), (10, 120)])
def test_what_many_steps_say_and_what_is_owed_at_last_are_the_vectors(shape):
    """Forty vectors added up and settled once, against what each of them has lost."""
    codec, owed, lost, said = projection(shape=shape), torch.zeros(1200), 0.0, 0.0
    for step in range(40):
        x = randn(1200, seed=50 + step)
        estimate = codec.lost(x, owed)
        codec.owe(x, owed)
        y = roundtrip(codec, x)
        said, lost = said + y.double(), lost + (x - y).double()
        assert estimate == pytest.approx(float(lost.square().sum()), rel=1e-5)
    assert (owed.double() - lost).norm() > 0.2 * lost.norm()  # as long as it is not settled
    codec.settle(owed)
    torch.testing.assert_close(owed.double(), lost, rtol=0, atol=1e-4)
    total = sum(randn(1200, seed=50 + step).double() for step in range(40))
    torch.testing.assert_close(said + owed, total, rtol=0, atol=1e-4)


def test_images_are_as_short_as_promised():
    assert projection().image_numel == 12 * 7 + 48  # coefficients and tail


def test_a_projection_tells_the_energies_sent_and_lost():
    codec, x = projection(), randn(1200)
    centred = (codec.slicing.cut(x)[0] - codec.mean).double()
    basis = codec.basis.double()
    sent = (centred @ basis.T).square().sum()
    lost = (centred - centred @ basis.T @ basis).square().sum()
    got = codec.project(x, torch.empty(codec.image_numel))
    assert got == pytest.approx((float(sent), float(lost)), rel=1e-6)


def test_projections_have_the_bits_of_the_reference(monkeypatch):
    """Not those of a BLAS, which are others on other machines."""
    codec, x = projection(rank=20), randn(1200)
    results = []
    for backend in (cpu, reference):
        monkeypatch.setattr(kernels, "for_device", lambda device, backend=backend: backend)
        image, out, rest = torch.empty(codec.image_numel), torch.empty(1200), x.clone()
        energies = codec.project(x, image)
        codec.expand(image, out)
        codec.subtract_image(-image, rest)
        results.append((image, out, rest, torch.tensor(energies, dtype=torch.float64)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
def test_a_value_that_is_not_finite_spoils_its_slice_and_no_more(poison):
    codec = projection()
    x = randn(1200)
    clean = mean_of(codec, [x, x])
    codec.slicing._view(x)[1, 2, 0, 0] = poison  # in slice (1 * 5 + 2) // 2 of two taps
    slices, tail = codec.slicing.cut(mean_of(codec, [x, randn(1200)]))
    spoilt = torch.arange(12) == 3
    assert not slices[spoilt].isfinite().any()
    assert slices[~spoilt].isfinite().all()
    assert tail.isfinite().all()
    assert clean.isfinite().all()


@pytest.mark.parametrize(
    ("rank", "count", "width"),
    [(0, 2, 9), (1, 3, 5), (13, 4, 1030), (8, 1, 1), (20, 0, 7), (19, 130, 1500)],
)
def test_combine_is_the_same_on_every_backend(rank, count, width):
    arguments = randn(rank, width), randn(rank, count, seed=1), randn(count, width, seed=2)
    outs = [torch.empty(count, width) for _ in range(2)]
    for backend, out in zip((reference, cpu), outs, strict=True):
        backend.combine(*arguments, out)
    assert torch.equal(*outs)
    basis, coefficients, base = arguments
    torch.testing.assert_close(outs[0], base + coefficients.T @ basis, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("rank", "count", "width"),
    [(0, 2, 9), (1, 3, 5), (13, 4, 1030), (8, 1, 1), (20, 0, 7), (19, 130, 600), (33, 7, 512)],
)
def test_project_is_the_same_on_every_backend(rank, count, width):
    slices, mean, basis = randn(count, width), randn(count, width, seed=1), randn(rank, width)
    results = []
    for backend in (reference, cpu):
        out, energies = torch.empty(rank, count), torch.empty(count, 2, dtype=torch.float64)
        backend.project(slices, mean, basis, out, energies)
        results.append((out, energies))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    centred, (out, energies) = (slices - mean).double(), results[0]
    torch.testing.assert_close(out.double(), basis.double() @ centred.T, rtol=0, atol=1e-3)
    exact = torch.stack((centred.square().sum(1), out.double().square().sum(0)), 1)
    torch.testing.assert_close(energies, exact, rtol=1e-12, atol=0)


# The cycle, in one process

SHORT = gw.GradiVeQ(
    slice=100, energy=0.99, warmup_steps=2, train_steps=8, compress_steps=5, inner=None
)
LAYOUT = contiguous(40, 100)


class Run:
    """One worker's parameter through a codec, with error feedback or without."""

    def __init__(self, codec=SHORT, owing=True):
        self.codec, self.owing, self.state = codec, owing, codec.start()
        self.residual = torch.zeros(4000)
        self.phases = []

    def step(self, gradient):
        self.phases.append(self.state.phase)
        flat = gradient.reshape(-1)
        step_codec, seen, mean = self.codec.codec_for(self.state, LAYOUT), (), gradient
        if isinstance(step_codec, AffineCodec):
            x = flat + self.residual if step_codec.is_first else flat
            sent, lost = step_codec.project(x, torch.empty(step_codec.image_numel))
            mean = roundtrip(step_codec, x)
            if self.owing:
                lost = lost if step_codec.is_first else step_codec.lost(flat, self.residual)
                step_codec.owe(flat, self.residual)
            seen = sent, lost
        before, state = (
            self.state,
            self.codec.learn(self.state, LAYOUT, mean, seen, owing=self.owing),
        )
        self.codec.settle(before, state, LAYOUT, self.residual)
        if self.codec.is_due(state):
            state = self.codec.adopt(state, LAYOUT, self.codec.fit(state, LAYOUT))
        self.state = state


def test_phases_follow_each_other():
    run = Run()
    for step in range(40):
        run.step(low_rank(40, 100, 3, seed=10 * step))
    cycle = ["train"] * 8 + ["compress"] * 5 + ["deliver"] * 2
    assert run.phases == (["warmup"] * 2 + 3 * cycle)[:40]


@pytest.mark.parametrize("owing", [True, False])
def test_it_goes_back_to_training_when_the_loss_grows(owing):
    """From step 20 on gradients lie in another subspace; a twin that goes on is compared."""
    codec = replace(SHORT, compress_steps=100)
    steady, shifted = Run(codec, owing), Run(codec, owing)
    for step in range(40):
        gradient = low_rank(40, 100, 3, noise=0.05, seed=10 * step)
        steady.step(gradient)
        shifted.step(gradient if step < 20 else gradient.roll(1, dims=1))
    assert steady.phases[10:] == ["compress"] * 30
    assert shifted.phases[10:21] == ["compress"] * 11
    assert shifted.phases[21:23] == ["deliver"] * 2
    assert shifted.phases[23] == "train"


def test_losing_the_same_direction_again_and_again_also_ends_the_phase():
    """Each step loses little, but with error feedback it adds up as no noise would."""
    codec = replace(SHORT, compress_steps=100)
    biased, noisy = Run(codec), Run(codec)
    for step in range(60):
        gradient = low_rank(40, 100, 3, seed=10 * step)
        error = 0.4 * randn(40, 100, seed=10 * step + 7)
        noisy.step(gradient + 0.3 * error if step >= 10 else gradient)
        biased.step(gradient + 0.12 * randn(40, 100, seed=999) if step >= 10 else gradient)
    assert noisy.phases[10:] == ["compress"] * 50
    assert "deliver" in biased.phases


def test_white_noise_is_left_uncompressed():
    run = Run()
    for step in range(12):
        run.step(randn(40, 100, seed=step))
    assert run.state.phase == "compress"
    assert SHORT.codec_for(run.state, LAYOUT) == Floats()
    assert SHORT.describe(run.state) == "whole, it does not compress"


def test_the_last_quarter_is_held_out():
    """Of few samples of long slices any axes keep all, and of the next ones nothing."""
    layout, codec = contiguous(4, 400), replace(SHORT, slice=400, energy=0.6)
    state = codec.start()
    for step in range(10):
        state = codec.learn(state, layout, randn(1600, seed=step), (), owing=True)
    assert codec.is_due(state)
    assert codec.fit(state, layout).numel() == 0
    held_in = torch.cat(state.samples[:6])
    assert 0 < len(principal_axes(held_in, held_in, 0.5)) <= 24  # the broken twin has axes


def test_held_out_slices_lose_less_than_was_allowed():
    """What the basis loses of the last quarter of the training phase, and of what comes after."""
    codec = replace(SHORT, train_steps=40, energy=0.9)
    run, seen = Run(codec), []
    for step in range(42):
        gradient = low_rank(40, 100, 3, noise=0.1, seed=10 * step)
        run.step(gradient)
        seen.append(gradient)
    lost = [run.state.mean - g for g in (*seen[-10:], low_rank(40, 100, 3, 0.1, seed=999))]
    for centred in lost:
        kept = centred @ run.state.basis.T @ run.state.basis
        assert (centred - kept).square().sum() < 0.1 * centred.square().sum()


def test_a_step_that_is_not_finite_teaches_nothing():
    run = Run()
    for step in range(12):
        run.step(low_rank(40, 100, 3, seed=10 * step))
        before = run.state
        after = SHORT.learn(before, LAYOUT, torch.full((4000,), math.nan), (), owing=True)
        assert after is before


def test_samples_are_bounded():
    codec = gw.GradiVeQ(train_steps=3000)
    for shape in ((512, 512, 3, 3), (64, 64, 3, 3), (10, 100)):
        slicing = Slicing.of(contiguous(*shape), codec.slice)
        per_step, stride = codec._sampling(slicing)
        samples = per_step * math.ceil(codec.train_steps / stride)
        assert 64 <= samples <= 1024 or slicing.count * 3000 < 64
        assert samples * slicing.size <= max(2**23, 64 * slicing.size)


# The cycle, on real workers


def planted(step, rank, shift):
    """Gradients of a channels_last convolution and a matrix that lie in three dimensions, and
    of a matrix that is white noise. From step `shift` on the three dimensions are others."""
    seed = 1000 * step + 10 * rank
    axes = randn(3, 512, seed=7 if step < shift else 8)
    taps = (randn(25, 3, seed=seed) @ axes).view(5, 5, 16, 32)
    rows = randn(100, 3, seed=seed + 1) @ axes[:, :200]
    return taps.permute(3, 2, 0, 1), rows, randn(100, 120, seed=seed + 2)


class Planted(nn.Module):
    """A model whose gradients are whatever is planted."""

    def __init__(self):
        super().__init__()
        conv = torch.zeros(32, 16, 5, 5).to(memory_format=torch.channels_last)
        self.conv = nn.Parameter(conv)
        self.rows = nn.Parameter(torch.zeros(100, 200))
        self.noise = nn.Parameter(torch.zeros(100, 120))
        self.small = nn.Parameter(torch.zeros(5))

    def forward(self, gradients):
        pairs = zip((self.conv, self.rows, self.noise), gradients, strict=True)
        return sum((p * g).sum() for p, g in pairs) + self.small.sum()


CYCLE = "gradiveq:slice=200,energy=0.99,warmup_steps=2,train_steps=8,compress_steps=5"
SPEC = f"{CYCLE},inner=none"


def attached(spec=SPEC, **options):
    ddp = DistributedDataParallel(Planted(), bucket_cap_mb=0.06)
    return ddp, gw.attach(ddp, gw.parse(spec), **options)


def means(ddp, rank, steps, shift=10**9, poison=None):
    """The mean gradients of every step, as this rank has them."""
    rows = []
    for step in steps:
        ddp.zero_grad()
        gradients = planted(step, rank, shift)
        if step == poison and rank == 1:
            gradients[0][0, 0, 0, 0] = float("inf")
        ddp(gradients).backward()
        rows.append([p.grad.clone() for p in ddp.module.parameters()])
    return rows


def phase_run(rank, spec, steps, shift):
    ddp, handle = attached(spec)
    rows, stats = [], []
    for step in range(steps):
        rows += means(ddp, rank, [step], shift)
        stats.append(handle.stats())
    residuals = handle.state_dict()[f"rank{rank}"]["residuals"]
    handle.close()
    return rows, stats, residuals


def true_means(size, steps, shift=10**9):
    per_rank = [[planted(step, rank, shift) for step in range(steps)] for rank in range(size)]
    return [
        [torch.stack(tensors).mean(0) for tensors in zip(*step, strict=True)]
        for step in zip(*per_rank, strict=True)
    ]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("inner", "slack"), [("none", 1e-5), ("fp16", 2e-3), ("global-qsgd:bits=8;block=64", 2e-2)]
)
def test_planted_structure_is_found_and_all_ranks_agree(worlds, size, inner, slack):
    spec = f"{CYCLE},inner={inner}"
    answers = worlds[size].run(phase_run, spec, 30, 10**9)
    for rows, _, _ in answers[1:]:
        for mine, theirs in zip(rows, answers[0][0], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    rows, stats, _ = answers[0]
    assert stats[12].learned == {
        "conv": "compress, 3 of 512 values a slice",
        "rows": "compress, 3 of 200 values a slice",
        "noise": "whole, it does not compress",
    }
    assert stats[12].raw == ("small",)
    true = true_means(size, 30)
    delivering = (15, 16)  # in these steps more than their own gradients arrives
    for step in sorted(set(range(30)) - set(delivering)):
        for mine, mean in zip(rows[step], true[step], strict=False):  # `small` is not planted
            assert (mine - mean).norm() < slack * mean.norm(), step
    for got, exact in zip(zip(*rows[:17], strict=True), zip(*true[:17], strict=True), strict=False):
        assert (sum(got) - sum(exact)).norm() < slack * sum(exact).norm()
    if inner in NBYTES:
        assert bytes_of(answers, 12) == pytest.approx(compressed(size, NBYTES[inner]), rel=1e-3)
        assert bytes_of(answers, 1) == pytest.approx(whole(size, NBYTES[inner]), rel=1e-3)


def bytes_of(answers, step):
    """What a worker sends in this step, the mean over the workers."""
    sent = [stats[step].bytes_sent - stats[step - 1].bytes_sent for _, stats, _ in answers]
    return sum(sent) / len(sent)


NBYTES = {"none": 4, "fp16": 2}


def compressed(size, nbytes):
    """Three coefficients a slice, and two energies of a parameter and whether it has a gradient,
    in float64, to every other worker; noise goes through the inner codec and `small` is raw."""
    images = 25 * 3 + 100 * 3
    energies = (size - 1) * 8 * 3 * 2
    return 2 * (size - 1) / size * (nbytes * (images + 12_000) + 4 * 5) + energies


def whole(size, nbytes):
    """All gradients through the inner codec, but `small`, which is raw."""
    return 2 * (size - 1) / size * (nbytes * 44_800 + 4 * 5)


class Flat(DDPHandle):
    """The broken twin: it takes the order in the bucket for that of the dimensions."""

    def _parts(self, buffer, parameters):
        parts = super()._parts(buffer, parameters)
        shapes = [Layout.of(torch.empty(p.shape)) for p in parameters]
        return [replace(p, layout=layout) for p, layout in zip(parts, shapes, strict=True)]


def learned_by(rank, kind):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.adapters.ddp.attach.DDPHandle", kind)
        ddp, handle = attached()
    means(ddp, rank, range(12))
    handle.close()
    return handle.stats().learned["conv"]


@pytest.mark.parametrize("kind", [DDPHandle, Flat])
def test_channels_last_convolutions_are_restored_before_they_are_sliced(worlds, kind):
    found = [answer.startswith("compress, 3 of") for answer in worlds[2].run(learned_by, kind)]
    assert found == [kind is DDPHandle] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_after_a_change_all_ranks_go_back_together_and_nothing_is_lost(worlds, size):
    """The shift falls into a compress phase; what it owes is delivered after it."""
    answers = worlds[size].run(phase_run, SPEC, 20, 12)
    rows, stats, residuals = answers[0]
    for other, other_stats, _ in answers[1:]:
        for mine, theirs in zip(rows, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
        assert [s.learned for s in other_stats] == [s.learned for s in stats]
    phases = [s.learned["conv"].split(",")[0] for s in stats]
    assert phases[9:16] == ["compress"] * 3 + ["deliver"] * 2 + ["train"] * 2
    true = true_means(size, 20, 12)
    missed = (rows[12][0] - true[12][0]).norm() / true[12][0].norm()
    assert missed > 0.5  # the old subspace holds little of the new gradients
    got = sum(row[0] for row in rows)
    expected = sum(row[0] for row in true)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
    assert residuals["conv"].abs().max() == 0


def sparse_run(rank, silent, steps):
    """What arrived of a convolution, what is still owed, and what was sent.

    The phases: compress from step 10, deliver in 13 and 14, train from 15, compress from 23,
    deliver in 28 and 29.
    """
    ddp, handle = attached()
    sent = got = 0
    for step in range(steps):
        ddp.zero_grad()
        gradients = [((rank, step) not in silent) * g for g in planted(step, rank, shift=12)]
        ddp(gradients).backward()
        sent, got = sent + gradients[0], got + ddp.module.conv.grad
    owed = handle.state_dict()[f"rank{rank}"]["residuals"]["conv"]
    handle.close()
    return got, owed, sent


@pytest.mark.parametrize(
    ("silent", "steps"),
    [
        ({(1, 14), (1, 23)}, 30),  # owed from the phase before, in the first step of the next
        ({(1, 25)}, 30),
        ({(0, 23), (1, 23)}, 31),  # of no worker: the step does not count
    ],
)
def test_workers_without_gradients_lose_nothing_of_what_they_owe(worlds, silent, steps):
    answers = worlds[2].run(sparse_run, silent, steps)
    expected = sum(sent for _, _, sent in answers) / 2
    for got, owed, _ in answers:
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
        assert owed.abs().max() == 0


def resumed(rank, cut):
    """Twenty steps at once, and the same with a checkpoint after `cut` of them."""
    spec = f"{CYCLE},inner=fp16"
    whole, one = attached(spec)
    expected = means(whole, rank, range(20), shift=12)
    first, two = attached(spec)
    means(first, rank, range(cut), shift=12)
    file = io.BytesIO()
    torch.save(two.state_dict(), file)
    file.seek(0)
    second, three = attached(spec)
    three.load_state_dict(torch.load(file, weights_only=True))
    got = means(second, rank, range(cut, 20), shift=12)
    phase = two.stats().learned["conv"].split(",")[0]
    for handle in (one, two, three):
        handle.close()
    pairs = zip(expected[cut:], got, strict=True)
    return phase, all(torch.equal(a, b) for rows in pairs for a, b in zip(*rows, strict=True))


@pytest.mark.parametrize(
    ("cut", "phase"),
    [
        (1, "warmup"),
        (2, "train"),
        (9, "train"),
        (10, "compress"),
        (12, "compress"),
        (14, "deliver"),
    ],
)
def test_resume_is_bit_identical_in_every_phase(worlds, cut, phase):
    assert worlds[2].run(resumed, cut) == [(phase, True)] * 2


def learned(state, spec=SPEC):
    return unpack(state["learned"])[str(gw.parse(spec))]


def poisoned(rank):
    """Rank 1 has an inf in step 11, while compressing."""
    ddp, handle = attached()
    means(ddp, rank, range(11))
    before = handle.state_dict()
    spoilt = means(ddp, rank, [11], poison=11)[0]
    after = handle.state_dict()
    later = means(ddp, rank, range(12, 16))
    handle.close()
    residuals = [state[f"rank{rank}"]["residuals"]["conv"] for state in (before, after)]
    kept = torch.equal(*residuals)
    counts = [learned(state)["conv"]["count"] for state in (before, after)]
    finite = all(tensor.isfinite().all() for row in later for tensor in row)
    return bool(spoilt[0].isfinite().all()), kept, counts, finite


def test_one_inf_step_leaves_residual_and_state_as_they_were(worlds):
    assert worlds[2].run(poisoned) == [(False, True, [1, 1], True)] * 2


def learning_state(rank):
    ddp, handle = attached()
    means(ddp, rank, range(12))
    state = learned(handle.state_dict(), SPEC)
    handle.close()
    return state, handle.stats().bytes_sent


@pytest.mark.parametrize("size", [2, 3])
def test_states_are_equal_on_all_ranks_and_rank_0_sends_them(worlds, size):
    answers = worlds[size].run(learning_state)
    for state, _ in answers[1:]:
        for name, fields in state.items():
            for field, value in fields.items():
                ours = answers[0][0][name][field]
                same = torch.equal(value, ours) if torch.is_tensor(value) else value == ours
                assert same, (name, field)
    fits = 8 * 3 + 4 * (1 + 3 * 512 + 1 + 3 * 200)  # sizes, K and bases; noise has none
    more = answers[0][1] - answers[1][1] - (size - 1) * fits
    slack = 0 if size == 2 else 12 * 3 * 2 * 4  # steps, parameters, shots: shards are not even
    assert abs(more) <= slack


def attach_wrongly(rank):
    ddp = DistributedDataParallel(Planted())
    with pytest.raises(ValueError, match="travels by code_reduce, got `collective='all_gather'`"):
        gw.attach(ddp, gw.GradiVeQ(), collective="all_gather")
    with pytest.raises(ValueError, match=r"learns over many steps.* use `attach`"):
        gw.all_reduce(torch.ones(4), gw.GradiVeQ())
    handle = gw.attach(ddp, gw.GradiVeQ())
    state = handle.state_dict()
    other = gw.attach(DistributedDataParallel(Planted()), gw.GradiVeQ(energy=0.8))
    with pytest.raises(ValueError, match=r"learned by gradiveq, but .* gradiveq:energy=0.8 learns"):
        other.load_state_dict(state)
    plain = gw.attach(DistributedDataParallel(Planted()), gw.QSGD())
    with pytest.raises(ValueError, match=r"learned by gradiveq, but .* no codec learns"):
        plain.load_state_dict(state)
    with pytest.raises(ValueError, match=r"learned by no codec, but .* gradiveq learns"):
        handle.load_state_dict(plain.state_dict())
    state["learned"] = pack({"gradiveq": {"gone": {}}})
    with pytest.raises(ValueError, match=r"learned of unknown parameters: \['gone'\]"):
        handle.load_state_dict(state)
    for each in (handle, other, plain):
        each.close()


def test_wrong_uses_are_refused_with_a_sentence(worlds):
    worlds[2].run(attach_wrongly)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"slice": 0}, "`slice` must be an integer of at least 1, got 0"),
        ({"train_steps": 7}, "`train_steps` must be an integer of at least 8, got 7"),
        ({"compress_steps": 0}, "at least 1, got 0"),
        ({"warmup_steps": -1}, "at least 0, got -1"),
        ({"energy": 1.0}, "between 0 and 1, got 1.0; to lose nothing, use `none`"),
        ({"energy": 99}, "got 99"),
        (
            {"inner": "qsgd"},
            "whose codes can be added, got QSGD.*`fp16`, `bf16` and `global-qsgd` are",
        ),
        ({"inner": gw.GradiVeQ()}, "whose codes can be added, got GradiVeQ"),
        ({"inner": "zip"}, "no codec is called 'zip'"),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        gw.GradiVeQ(**settings)


def test_inner_codecs_are_spelled_inside_the_spec():
    assert gw.GradiVeQ(inner=gw.Cast("bf16")) == gw.parse("gradiveq:inner=bf16")
    assert str(gw.GradiVeQ(inner="bf16")) == "gradiveq:inner=bf16"
    codec = gw.GradiVeQ(inner=gw.GlobalQSGD(bits=8, block=64))
    assert str(codec) == "gradiveq:inner=global-qsgd:bits=8;block=64"
    assert gw.parse(str(codec)) == codec
    assert gw.GradiVeQ(inner=gw.GlobalQSGD(bits=8)) == gw.GradiVeQ() == gw.parse("gradiveq")
    whole = gw.GradiVeQ(inner=gw.Identity())
    assert whole == gw.GradiVeQ(inner=None) == gw.parse(str(whole))
    assert str(whole) == "gradiveq:inner=none"
