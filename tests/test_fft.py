"""The laws of FFT sparsification: Parseval, exact counts, range floats, one inverse transform."""

import math
import struct
import threading

import numpy as np
import pytest
import scipy.fft
import scipy.signal
import scipy.stats
import torch

import gradwire as gw
from gradwire import collectives, scratch
from gradwire.codec import Codec
from gradwire.codecs.fft import DOMAINS
from gradwire.codecs.fft.drop import drop_at, least_drop
from gradwire.codecs.gaps import bitmap_nbytes
from gradwire.collectives.parts import Part, cut, whole
from gradwire.collectives.relay import deal
from gradwire.kernels import cpu, reference
from gradwire.kernels.cpu.transforms import transform
from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.kernels.formats.rangefloat import half_eps, is_base, num_positive
from gradwire.kernels.formats.spectra import Form, Kept
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.route import Route
from gradwire.transport.link import Link
from laws import reduce_now, roundtrip
from world import data

KEY = gw.Key()
FLOATS = [(bits, m) for bits in (3, 6, 8, 9, 10, 13, 16) for m in range(max(0, bits - 8), bits - 1)]


def gaussian(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def correlated(numel, seed=0):
    """AR(1) with coefficient 0.9."""
    noise = gaussian(numel, seed).double().numpy()
    return torch.from_numpy(scipy.signal.lfilter([1.0], [1.0, -0.9], noise)).float()


def spectrum(domain, x, block):
    """Coefficients by another route, in float64."""
    parts = [part.double().numpy() for part in torch.split(x, block)]
    if domain == "time":
        return np.concatenate(parts)
    return np.concatenate([scipy.fft.dct(part, norm="ortho") for part in parts])


def nmse(codec, x):
    error = (roundtrip(codec, x) - x).double().square().sum()
    return float(error / x.double().square().sum())


# Parseval, and what is kept


@pytest.mark.parametrize("domain", ["time", "dct"])
@pytest.mark.parametrize("drop", [0.1, 0.5, 0.9, 0.99])
def test_energy_lost_is_that_of_the_smallest_coefficients(domain, drop):
    codec, x = gw.FFTSparse(drop=drop, bits=None, domain=domain), correlated(10_240)
    rows = np.sort((spectrum(domain, x, codec.block) ** 2).reshape(-1, codec.block), axis=1)
    lost = rows[:, : codec.block - codec.count(0)]
    error = (roundtrip(codec, x) - x).double().square().sum()
    assert float(error) == pytest.approx(lost.sum(), rel=1e-5)


def energies(parts):
    """What the coefficients of transforms of these vectors hold, by the paper's form of Parseval:
    |v|^2 = 1/n sum w_k |F_k|^2, w = 2 but for the first bin and the last."""
    components = []
    for part in parts:
        f, n = np.fft.rfft(part.double().numpy()), part.numel()
        w = np.full(len(f), 2.0)
        w[0] = w[-1] = 1
        components += [w * f.real**2 / n, (w * f.imag**2 / n)[1:-1]]
    return np.concatenate(components)


@pytest.mark.parametrize("numel", [256 * 40, 256 * 40 + 77])
@pytest.mark.parametrize("drop", [0.1, 0.5, 0.9, 0.99])
def test_parseval_in_the_papers_form(drop, numel):
    codec, x = gw.FFTSparse(drop=drop, bits=None, block=256), correlated(numel)
    lost, form = 0.0, Form(256, codec.count(0), None, 0)
    for block in torch.split(x, 256):
        found = energies(torch.split(block, [64, 8, 4, 1] if block.numel() < 256 else [256]))
        lost += np.sort(found)[: block.numel() - form.kept_of(block.numel())].sum()
    error = float((roundtrip(codec, x) - x).double().square().sum())
    assert error == pytest.approx(lost, rel=1e-5)


def test_parseval_rejects_a_transform_that_is_not_a_rotation():
    """Without sqrt(2), bins that the spectrum counts once weigh too much."""
    x, ends = correlated(10_240), torch.full((256,), math.sqrt(2.0))
    ends[0] = ends[-1] = 1
    codec = gw.FFTSparse(drop=0.5, bits=None, block=256)
    transform(x, c := torch.empty_like(x), domain="fft", block=256)
    time = gw.FFTSparse(drop=0.5, bits=None, block=256, domain="time")
    wrong = roundtrip(time, (c.view(-1, 256) / ends).view(-1)).view(-1, 256) * ends
    error = (wrong.view(-1) - c).double().square().sum() / c.double().square().sum()
    assert float(error) > 1.0001 * nmse(codec, x)


@pytest.mark.parametrize(
    ("drop", "owes"),
    [(0, False), (0.5, False), (0.51, True), (0.85, True), ("0.5@0/0.2@10", False),
     ("0.2@0/0.9@10", True), ("0.5*linear@10", False), ("0.9*cosine@10", True)],
)  # fmt: skip
def test_error_feedback_is_on_where_more_than_half_is_dropped(drop, owes):
    codec = gw.FFTSparse(drop=drop)
    assert codec.owes is owes
    assert Route.of(codec, 4).error_feedback is owes
    assert Route.of(codec, 4, error_feedback=not owes).error_feedback is not owes


def test_small_parameters_have_owners_in_turn():
    parts = [Part(torch.zeros(100), number, gw.FFTSparse()) for number in range(8)]
    shards = deal(whole(parts), 4)
    assert [[piece.part.tensor for piece in shard] for shard in shards] == [
        [0, 4], [1, 5], [2, 6], [3, 7],
    ]  # fmt: skip


@pytest.mark.parametrize("domain", [*DOMAINS, "auto"])
def test_dropping_nothing_loses_nothing_but_float_rounding(domain):
    codec = gw.FFTSparse(drop=0, bits=None, domain=domain)
    for numel in (1, 7, 512, 513, 20_000):
        x = gaussian(numel)
        torch.testing.assert_close(roundtrip(codec, x), x, rtol=0, atol=3e-6)


@pytest.mark.parametrize("numel", [1, 10, 100, 1000, 12_345])
@pytest.mark.parametrize("drop", [0.0, 0.3, 0.85, 0.999])
def test_exactly_the_asked_count_is_kept(numel, drop):
    """Of every block, of distinct values and of ties, nonzero all; of equal ones the first."""
    codec = gw.FFTSparse(drop=drop, bits=None, domain="time", block=256)
    count = max(1, round((1 - drop) * 256))
    for x in (gaussian(numel), gaussian(numel).round() + 0.5, torch.ones(numel)):
        for part, y in zip(x.split(256), roundtrip(codec, x).split(256), strict=True):
            expected = math.ceil(part.numel() * count / 256)
            assert int((y != 0).sum()) == expected
            found = part.abs().sort(descending=True, stable=True).indices[:expected]
            assert torch.equal(y[found], part[found])


@pytest.mark.parametrize("drop", [0.7, 0.85, 0.95])
def test_white_gradients_lose_what_theory_says_in_any_domain(drop):
    """A Gaussian's energy above t is 2 (t phi(t) + Q(t)); the FFT of white noise is Gaussian."""
    p, n = 1 - drop, 1 << 18
    t = scipy.stats.norm.isf(p / 2)
    lost = 1 - 2 * (t * scipy.stats.norm.pdf(t) + p / 2)
    laplace = torch.from_numpy(np.random.default_rng(1).laplace(size=n)).float()
    for domain in ("fft", "dct"):
        codec = gw.FFTSparse(drop=drop, bits=None, domain=domain, block=1024)
        for x in (gaussian(n), laplace):
            assert nmse(codec, x) == pytest.approx(lost, rel=0.01)
    assert nmse(gw.FFTSparse(drop=drop, bits=None, domain="time"), laplace) < 0.81 * lost
    assert nmse(gw.FFTSparse(drop=drop, block=1024), correlated(n)) < 0.4 * lost


@pytest.mark.parametrize("drop", [0.5, 0.85, 0.97])
def test_auto_takes_the_domain_that_keeps_most(drop):
    laplace = torch.from_numpy(np.random.default_rng(1).laplace(size=30_000)).float()
    chosen = set()
    ramps = torch.arange(30_000.0) % 256
    for x in (gaussian(30_000), laplace, correlated(30_000), ramps, torch.zeros(30_000)):
        errors = [
            (roundtrip(gw.FFTSparse(drop, None, domain=domain), x) - x).norm() for domain in DOMAINS
        ]
        auto = gw.FFTSparse(drop, None, domain="auto")
        assert (roundtrip(auto, x) - x).norm() <= min(errors) * (1 + 1e-5)
        chosen.add(int(auto.encode(x, KEY)[4]))
    assert len(chosen) >= 2


@pytest.mark.parametrize("poison", [0.0, float("inf"), float("nan")])
def test_auto_looks_at_a_sample_of_a_long_vector_and_past_what_is_not_finite(poison):
    auto, time = (gw.FFTSparse(0.85, None, domain=domain) for domain in ("auto", "time"))
    x = correlated(400_000)
    x[5] = poison
    rest = slice(auto.block, None)
    errors = [(roundtrip(codec, x) - x)[rest].norm() for codec in (auto, time)]
    assert errors[0] < 0.6 * errors[1]


def test_types_are_widened_before_the_transform():
    for dtype in (torch.float16, torch.bfloat16):
        x = gaussian(3000).to(dtype)
        codec = gw.FFTSparse()
        assert torch.equal(codec.encode(x, KEY), codec.encode(x.float(), KEY))


def test_finite_values_whose_spectrum_overflows_spoil_their_block():
    x = gaussian(1024)
    x[256:512] = 3e38
    y = roundtrip(gw.FFTSparse(block=256), x)
    assert y[256:512].isnan().all()
    assert torch.cat((y[:256], y[512:])).isfinite().all()


# Range floats


def coded(backend, x, bits, mantissa):
    """Codes of all values, as of one block; what they stand for; and the base."""
    form = Form(1 << 14, 1 << 14, bits, mantissa)
    sizes = form.scales_nbytes(x.numel()), bitmap_nbytes(x.numel()), form.codes_nbytes(x.numel())
    kept = Kept(*(torch.empty(size, dtype=torch.uint8) for size in sizes))
    assert backend.keep_spectra(x, [], kept, None, domain="time", form=form)
    values = torch.empty(x.numel())
    assert backend.add_spectra([kept], values, domain="time", form=form)
    return kept.codes, values, int.from_bytes(kept.scales.numpy().tobytes(), "little")


def all_values(bits, mantissa, base):
    """By the definition: 0 and plus and minus 2^e (1 + f / 2^m), taken from bit patterns."""
    patterns = [(base + i) << (23 - mantissa) for i in range(num_positive(bits))]
    positive = [struct.unpack("<f", struct.pack("<I", pattern))[0] for pattern in patterns]
    return torch.tensor([0.0, *positive, *(-value for value in positive)], dtype=torch.float64)


@pytest.mark.parametrize(("bits", "mantissa"), [(3, 1), (6, 2), (6, 4), (8, 3), (10, 5)])
@pytest.mark.parametrize("scale", [1e-39, 1e-3, 1.0, 3e37])
def test_every_value_goes_to_the_nearest_code(bits, mantissa, scale):
    x = torch.cat((gaussian(2000), gaussian(500) * 1e-2, gaussian(500) * 1e-5)) * scale
    _, values, base = coded(cpu, x, bits, mantissa)
    distance = (x.double()[:, None] - all_values(bits, mantissa, base)).abs().amin(1)
    assert torch.equal((values.double() - x).abs(), distance)


def test_the_nearest_code_is_not_that_of_truncation():
    """The law above rejects the twin that leaves out half a step."""
    x = gaussian(2000)
    _, values, base = coded(cpu, x, 8, 3)
    truncated = (x.view(torch.int32) >> 20 << 20).view(torch.float32)
    distance = (x.double()[:, None] - all_values(8, 3, base)).abs().amin(1)
    assert ((truncated - x).abs() > distance).any()
    assert not torch.equal(values, truncated)


@pytest.mark.parametrize(("bits", "mantissa"), FLOATS)
def test_range_float_error_is_below_its_bound(bits, mantissa):
    """2^-(m+1) of the value from eps on, eps / 2 below."""
    x = torch.cat((gaussian(5000), 2.0 ** (4 * gaussian(5000)))).double().float()
    _, values, base = coded(cpu, x, bits, mantissa)
    eps = float(all_values(bits, mantissa, base)[1])
    allowed = torch.where(x.abs() >= eps, x.abs().double() * 2.0 ** -(mantissa + 1), eps / 2)
    assert ((values - x.double()).abs() <= allowed).all()


@pytest.mark.parametrize(("bits", "mantissa"), FLOATS)
def test_range_float_is_idempotent_monotone_and_odd(bits, mantissa):
    x = torch.cat((gaussian(3000), 2.0 ** (3 * gaussian(1000)))).sort().values
    codes, values, base = coded(cpu, x, bits, mantissa)
    again, same, refitted = coded(cpu, values, bits, mantissa)
    assert refitted == base
    assert torch.equal(again, codes)
    assert torch.equal(same, values)
    assert (values.diff() >= 0).all()
    assert torch.equal(coded(cpu, -x, bits, mantissa)[1], -values)


def test_range_float_reaches_to_the_largest_value_and_16_octaves_down():
    x = torch.tensor([1.0, -1.0, 2.0**-15, 2.0**-20, 0.0, -0.0])
    _, values, _ = coded(cpu, x, 10, 5)
    assert values.tolist() == [1.0, -1.0, 2.0**-15, 0.0, 0.0, 0.0]
    huge = torch.tensor([3.4028234e38, -1.0])
    assert coded(cpu, huge, 10, 5)[1].isfinite().all()


def said(backend, base, bits, mantissa):
    """64 values whose codes are all ones, with this base; None if it is refused."""
    form, out = Form(64, 64, bits, mantissa), torch.empty(64)
    scales = torch.tensor(list(base.to_bytes(form.scale_nbytes, "little")), dtype=torch.uint8)
    ones = torch.full((packed_nbytes(64, bits),), 0xFF, dtype=torch.uint8)
    kept = Kept(scales, torch.full((8,), 0xFF, dtype=torch.uint8), ones)
    return out if backend.add_spectra([kept], out, domain="time", form=form) else None


def test_all_codes_of_a_base_that_is_let_through_are_finite():
    for bits, mantissa in FLOATS:
        top = (0x7F7FFFFF >> 23 - mantissa) - num_positive(bits) + 1
        for base in (1, top):
            assert is_base(base, bits=bits, mantissa=mantissa)
            for backend in (cpu, reference):
                assert said(backend, base, bits, mantissa).isfinite().all()
        for base in (top + 1, 0):
            assert not is_base(base, bits=bits, mantissa=mantissa)
        for backend in (cpu, reference):
            assert said(backend, top + 1, bits, mantissa) is None
            assert said(backend, 0, bits, mantissa).isnan().all()
        assert half_eps(1, mantissa) > 0


# Kernels


@pytest.mark.parametrize("block", [8, 64, 256, 4096])
def test_selection_is_that_of_topk(block):
    x = gaussian(64 * block)
    for count in {1, block // 3, block - 1}:
        form = Form(block, count, None, 0)
        sizes = form.scales_nbytes(len(x)), bitmap_nbytes(len(x)), form.codes_nbytes(len(x))
        kept = Kept(*(torch.empty(size, dtype=torch.uint8) for size in sizes))
        cpu.keep_spectra(x, [], kept, None, domain="time", form=form)
        found = kept.codes.view(torch.float32).view(-1, count).abs().sort(1).values
        expected = x.view(-1, block).abs().topk(count).values.sort(1).values
        assert torch.equal(found, expected)


def test_gap_decoders_agree_on_garbage():
    generator = torch.Generator().manual_seed(0)
    verdicts = set()
    for case in range(400):
        words = int(torch.randint(0, 3, (), generator=generator))
        unary = torch.randint(0, 256, (8 * words,), generator=generator, dtype=torch.uint8)
        if case % 2:
            unary &= torch.randint(0, 256, (8 * words,), generator=generator, dtype=torch.uint8)
        ones = int(np.unpackbits(unary.numpy()).sum())
        count, rice = max(0, ones + case % 5 // 4), case % 4
        low = torch.randint(0, 256, (packed_nbytes(count, rice),), generator=generator).byte()
        answers = []
        for backend in (reference, cpu):
            bitmap = torch.zeros(bitmap_nbytes(130), dtype=torch.uint8)
            whole = backend.gap_decode(low, unary, bitmap, rice=rice, count=count, numel=130)
            answers.append((whole, bitmap.tolist() if whole else None))
        assert answers[0] == answers[1]
        verdicts.add(answers[0][0])
    assert verdicts == {True, False}


# Wire


@pytest.mark.parametrize("drop", [0.5, 0.7, 0.8, 0.85, 0.99])
def test_places_are_a_bitmap_or_cost_near_their_entropy(drop):
    n, codec = 512_000, gw.FFTSparse(drop, block=256)
    p = codec.count(0) / 256
    entropy = -(p * math.log2(p) + (1 - p) * math.log2(1 - p))
    sizes = codec.anatomy(codec.encode(gaussian(n), KEY), n)
    assert codec.fixed_size == (p >= 0.25)
    if p >= 0.25:
        assert sizes["bitmap"] == bitmap_nbytes(n)
    else:
        assert 0.97 * entropy < 8 * sizes["gaps"] / n < 1.05 * entropy


def test_gaps_that_would_be_longer_than_a_bitmap_are_not_sent():
    """Whole words for their unary part are too much for a short vector."""
    codec, x = gw.FFTSparse(drop=0.76, domain="time", block=64), gaussian(64)
    assert "bitmap" in codec.anatomy(codec.encode(x, KEY), 64)
    assert "gaps" in codec.anatomy(codec.encode(gaussian(6400), KEY), 6400)
    assert int((roundtrip(codec, x) != 0).sum()) == codec.num_kept(64, 0) == 15


def test_bits_on_the_wire():
    x, n = gaussian(1_024_000), 1_024_000
    for spec, bits in (
        ("fft", 1 + 4 * 0.5 + 16 / 256),
        ("fft:bits=6,mantissa=2,drop=0.75", 1 + 6 * 0.25 + 16 / 256),
        ("fft:bits=16,mantissa=8,drop=0.75", 1 + 16 * 0.25 + 32 / 256),
        ("fft:drop=0,bits=none", 32 + 16 / 256),
    ):
        codec = gw.parse(spec)
        assert codec.fixed_size
        assert codec.encode(x, KEY).numel() == codec.max_nbytes(n) == 8 + bits * n / 8
    assert 8 * gw.parse("fft:wire=zstd").encode(x, KEY).numel() / n < 1 + 4 * 0.5


@pytest.mark.parametrize(
    "spec",
    [
        "fft",
        "fft:drop=0.3",
        "fft:domain=auto,wire=zstd",
        "fft:drop=0,bits=none",
        "fft:bits=16,mantissa=9",
    ],
)
def test_damaged_payloads_are_refused_or_decoded_but_never_more(spec):
    """Every byte of the header at many values, random bytes elsewhere, and any cut."""
    codec, x = gw.parse(spec), gaussian(3000)
    x[700] = float("inf")
    payload = codec.encode(x, KEY)
    generator = torch.Generator().manual_seed(0)
    refused = 0
    places = (
        list(range(8)) * 36
        + torch.randint(0, payload.numel(), (300,), generator=generator).tolist()
    )
    for place in places:
        damaged = payload.clone()
        damaged[place] ^= int(torch.randint(1, 256, (), generator=generator))
        try:
            assert codec.decode(damaged, 3000, KEY).shape == (3000,)
        except ValueError:
            refused += 1
    assert refused > 100
    for size in [*range(40), payload.numel() // 2, payload.numel() - 1]:
        with pytest.raises(ValueError, match=r"expected|damaged|promises|holds"):
            codec.decode(payload[:size], 3000, KEY)
    with pytest.raises(ValueError, match=r"expected|damaged|promises|holds"):
        codec.decode(payload, 1500, KEY)


def test_a_payload_may_lie_at_an_odd_address():
    for spec in ("fft", "fft:drop=0.3", "fft:drop=0.5,bits=none", "fft:wire=zstd"):
        codec, x = gw.parse(spec), gaussian(3000)
        payload = codec.encode(x, KEY)
        shifted = torch.empty(payload.numel() + 3, dtype=torch.uint8)[3:]
        shifted.copy_(payload)
        assert torch.equal(codec.decode(shifted, 3000, KEY), codec.decode(payload, 3000, KEY))


# Many workers


def held_after(codec, vectors):
    """Scratch memory of a thread that encodes, averages, and takes its own off a residual."""
    numel, held = vectors[0].numel(), []

    def work():
        payloads, keys = payloads_of(codec, vectors)
        mean = torch.empty(numel)
        codec.mean_into(payloads, mean, keys)
        codec.decode_into(payloads[0], mean, KEY, weight=-1.0, accumulate=True)
        held.append(scratch.of_thread().nbytes)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return held[0]


@pytest.mark.parametrize("spec", ["fft", "fft:domain=auto", "fft:drop=0.3,bits=none"])
def test_bitmaps_need_no_scratch_memory(spec):
    numel = 1_000_003
    laplace = torch.from_numpy(np.random.default_rng(1).laplace(size=numel)).float()
    vectors = [correlated(numel), laplace, correlated(numel, 1)]
    assert held_after(gw.parse(spec), vectors) == 0


def payloads_of(codec, vectors):
    keys = [gw.Key(rank=rank) for rank in range(len(vectors))]
    return [codec.encode(x, key) for x, key in zip(vectors, keys, strict=True)], keys


def test_the_mean_is_taken_of_spectra_and_turned_back_once(monkeypatch):
    codec, vectors = gw.FFTSparse(), [correlated(5000, seed) for seed in range(4)]
    payloads, keys = payloads_of(codec, vectors)
    expected = torch.stack([codec.decode(payload, 5000, KEY) for payload in payloads]).mean(0)
    calls, add = [], cpu.add_spectra

    def counted(kept, *args, **options):
        calls.append(len(kept))
        return add(kept, *args, **options)

    monkeypatch.setattr(cpu, "add_spectra", counted)
    mean = torch.empty(5000)
    codec.mean_into(payloads, mean, keys)
    assert calls == [4]
    torch.testing.assert_close(mean, expected, rtol=0, atol=3e-6)


def test_workers_may_choose_different_domains():
    codec = gw.FFTSparse(domain="auto")
    laplace = torch.from_numpy(np.random.default_rng(1).laplace(size=5000)).float()
    payloads, keys = payloads_of(codec, [correlated(5000), laplace, correlated(5000, 1)])
    assert len({int(payload[4]) for payload in payloads}) == 2
    expected = torch.stack([codec.decode(payload, 5000, KEY) for payload in payloads]).mean(0)
    mean = torch.empty(5000)
    codec.mean_into(payloads, mean, keys)
    torch.testing.assert_close(mean, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("spec", ["fft", "fft:domain=auto", "fft:drop=0.9,block=64,wire=zstd"])
def test_an_owner_owes_what_its_payload_of_the_mean_does_not_say(spec):
    """In the frequency domain, and as a codec would do it that knows of none."""
    codec, world = gw.parse(spec), 4
    laplace = torch.from_numpy(np.random.default_rng(1).laplace(size=5000)).float()
    vectors = [correlated(5000), laplace, correlated(5000, 1), correlated(5000, 2)]
    payloads, keys = payloads_of(codec, vectors)
    mean = (vectors[0] + sum(codec.decode(p, 5000, KEY) for p in payloads[1:])) / world
    for relay in (codec.relay, lambda *args: Codec.relay(codec, *args)):
        total, room = vectors[0].clone(), torch.empty(codec.max_nbytes(5000), dtype=torch.uint8)
        size = relay(payloads[1:], total, room, keys[1:], KEY)
        reply = codec.decode(room[:size], 5000, KEY)
        torch.testing.assert_close(reply + total / world, mean, rtol=0, atol=1e-5)
        assert (reply - mean).norm() < 1.01 * (roundtrip(codec, mean) - mean).norm()


def test_payloads_are_gathered_between_two_and_relayed_among_more():
    assert collectives.choose(gw.FFTSparse(), 2).name == "all_gather"
    assert collectives.choose(gw.FFTSparse(), 3).name == "relay"


@pytest.mark.parametrize("world", [3, 4, 8])
def test_who_owns_what_does_not_depend_on_chunks(world):
    parts = [
        Part(torch.zeros(n), i, gw.FFTSparse()) for i, n in enumerate((10**4, 10**6, 9 * 10**6))
    ]
    owners = {}
    for chunks in (1, 3, 7):
        for chunk in cut(whole(parts), chunks):
            for owner, shard in enumerate(deal(chunk, world)):
                for piece in shard:
                    for place in range(piece.start, piece.stop, 2048):
                        assert owners.setdefault((piece.part.tensor, place), owner) == owner
    shares = np.bincount(list(owners.values()), minlength=world) / len(owners)
    assert shares.max() < 1.1 / world


def repeated(rank, spec, steps):
    """The mean over `steps` of the results for the same gradients, and the largest residual."""
    reducer = Reducer(Link(), gw.parse(spec), min_numel=0)
    total, x = torch.zeros(4000), data(rank, 4000)
    for step in range(steps):
        reducer.step = step
        y = x.clone()
        reduce_now(reducer, y)
        total += y
    return (
        reducer.route.error_feedback,
        total / steps,
        float(reducer.residuals.of("0", 4000).norm() / x.norm()),
    )


@pytest.mark.parametrize("size", [2, 3])
def test_error_feedback_is_on_and_sends_everything_in_the_end(worlds, size):
    """The mean result after T steps misses the mean gradient by the residuals over T."""
    answers = worlds[size].run(repeated, "fft:drop=0.9", 60)
    mean = sum(data(rank, 4000) for rank in range(size)) / size
    assert all(on for on, _, _ in answers)
    assert all(torch.equal(answers[0][1], result) for _, result, _ in answers)
    residual = max(ratio for _, _, ratio in answers)
    assert residual < 20 * size
    once = (roundtrip(gw.FFTSparse(0.9), mean) - mean).norm()
    assert (answers[0][1] - mean).norm() < 0.4 * once


# Settings


@pytest.mark.parametrize(
    ("drop", "step", "expected"),
    [
        (0.85, 10**6, 0.85),
        ("0.9@0", 5, 0.9),
        ("0.9@0/0.5@100/0@200", 0, 0.9),
        ("0.9@0/0.5@100/0@200", 199, 0.5),
        ("0.9@0/0.5@100/0@200", 200, 0.0),
        ("0.8*linear@100", 0, 0.8),
        ("0.8*linear@100", 75, 0.4),
        ("0.8*linear@100", 101, 0.0),
        ("0.8*cosine@90", 60, 0.4),
        ("0.8*cosine@90", 91, 0.0),
        ("0.8*rsqrt@10", 150, 0.4),
    ],
)
def test_schedules(drop, step, expected):
    assert drop_at(drop, step) == pytest.approx(expected, abs=1e-12)
    assert least_drop(drop) <= expected
    codec = gw.parse(f"fft:drop={drop},block=1024")
    assert codec.count(step) == round(1024 * (1 - expected))
    assert codec.encode(gaussian(1000), gw.Key(step=step)).numel() <= codec.max_nbytes(1000)


def test_schedules_are_the_same_on_every_machine(monkeypatch):
    """What is kept depends on them. No cosine or power of a library is asked, only square roots."""

    def library(*_):
        raise AssertionError("the last bit of this differs between machines")

    for name in ("cos", "sin", "exp", "log", "pow"):
        monkeypatch.setattr(math, name, library)
    drops = {name: drop_at(f"0.9*{name}@7", 3).hex() for name in ("linear", "cosine", "rsqrt")}
    assert drops == {
        "linear": "0x1.5c5501c63f8b6p-1",
        "cosine": "0x1.6844982ebae77p-1",
        "rsqrt": "0x1.a57d5de28bcd0p-1",
    }


def test_the_drop_follows_the_learning_rate_as_the_theorem_asks():
    """theta_t^2 / eta_t is the same at every step."""
    rates = {0: 0.4, 100: 0.1, 250: 0.004}
    schedule = gw.drop_with_rate(0.9, rates)
    ratios = [drop_at(schedule, step) ** 2 / rate for step, rate in rates.items()]
    assert ratios == pytest.approx([0.81 / 0.4] * 3, rel=1e-4)
    assert drop_at(schedule, 99) == drop_at(schedule, 0)
    shapes = {
        "linear": lambda t: 1 - t / 1000,
        "cosine": lambda t: (1 + math.cos(math.pi * t / 1000)) / 2,
        "rsqrt": lambda t: (1 + t / 1000) ** -0.5,
    }
    for name, rate in shapes.items():
        for step in (0, 10, 500, 999):
            squared = drop_at(f"0.9*{name}@1000", step) ** 2
            assert squared == pytest.approx(0.81 * rate(step), rel=1e-9)


@pytest.mark.parametrize(
    "rates", [{}, {1: 0.1}, {0: 0.0}, {0: float("nan")}, {0: 0.1, 5: float("inf")}, {0: -1.0}]
)
def test_bad_rates_are_refused(rates):
    with pytest.raises(ValueError, match="must map steps, 0 among them, to finite"):
        gw.drop_with_rate(0.9, rates)


def test_a_rate_that_grows_until_all_is_dropped_is_refused():
    with pytest.raises(ValueError, match="below 1 at every step"):
        gw.drop_with_rate(0.9, {0: 0.1, 10: 0.2})


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"drop": 1.0}, "below 1 at every step, got 1.0; .* 0.99 keeps one .* in a hundred"),
        ({"drop": -0.1}, "at least 0 and below 1"),
        ({"drop": float("nan")}, "below 1 at every step, got nan"),
        ({"drop": None}, "a fraction or a schedule, got None; write 0.85, or 0.9@0/0.5@1000"),
        ({"drop": True}, "a fraction or a schedule, got True"),
        ({"drop": ""}, "cannot be read from ''; write"),
        ({"drop": "0.9@0/nan@10"}, "below 1 at every step, got '0.9@0/nan@10'"),
        ({"drop": "0.9@0/1.0@10"}, "below 1 at every step"),
        ({"drop": "0.9@5/0.5@10"}, "must begin at 0 and grow, got \\[5, 10\\]"),
        ({"drop": "0.9@0/0.5@10/0.4@10"}, "must begin at 0 and grow"),
        ({"drop": "0.9@0/0.5@-3"}, "cannot be read"),
        ({"drop": "0.9@0/0.5"}, "cannot be read"),
        ({"drop": "0.9*quadratic@10"}, "cannot be read .* \\*cosine, \\*rsqrt"),
        ({"drop": "0.9*linear@0"}, "cannot be read"),
        ({"drop": "1*linear@10"}, "below 1 at every step"),
        ({"drop": "x*linear@10"}, "cannot be read"),
        ({"bits": 2}, "`bits` must be an integer from 3 to 16, or None for float32, got 2"),
        ({"bits": 17}, "got 17"),
        ({"bits": 10, "mantissa": 9}, "`mantissa` must be from 2 to 8 with `bits=10`.* got 9"),
        ({"bits": 16}, "`mantissa` must be from 8 to 14 with `bits=16`.* got 1"),
        ({"bits": 4, "mantissa": 3}, "leaves 1 to 7 bits of exponent beside the sign, got 3"),
        ({"domain": "wavelet"}, '"fft", "dct", "time" or "auto", got \'wavelet\''),
        ({"block": 100}, "`block` must be a power of two from 8 to 65536, got 100"),
        ({"block": 4}, "got 4"),
        ({"block": None}, "got None"),
        ({"wire": "elias"}, '`wire` must be "packed" or "zstd", got \'elias\''),
    ],
)
def test_bad_settings_are_refused(settings, match):
    with pytest.raises(ValueError, match=match):
        gw.FFTSparse(**settings)
