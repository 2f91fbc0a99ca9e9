"""Lossless: every bit arrives, whatever it is; damage is found; the mean is that of all ranks."""

import numpy as np
import pytest
import torch

import gradwire as gw
from gradwire.kernels import cpu, reference
from gradwire.kernels.cpu import picked
from gradwire.kernels.formats.lossless import CHUNK, HEAD, MARK, PRIORS, gains, max_nbytes

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
KEY = gw.Key(seed=4)
LOSSLESS = gw.Lossless()


def random(seed):
    return torch.Generator().manual_seed(seed)


def bits(x):
    return x.view(torch.int32 if x.dtype == torch.float32 else torch.int16)


def from_bits(patterns, dtype):
    size = 8 * dtype.itemsize
    wrapped = (patterns + (1 << size - 1)) % (1 << size) - (1 << size - 1)
    return wrapped.to(torch.int32 if size == 32 else torch.int16).view(dtype)


def per_value(x):
    return 8 * LOSSLESS.encode(x, KEY).numel() / x.numel()


def assert_arrives(x):
    """Through a message, which gives back the type, and through a payload, to float32."""
    back = gw.decode(gw.encode(LOSSLESS, x, KEY))
    assert back.dtype == x.dtype
    assert torch.equal(bits(back), bits(x))
    wide = LOSSLESS.decode(LOSSLESS.encode(x, KEY), x.numel(), KEY)
    same = wide.to(x.dtype) if x.dtype != torch.float32 else wide
    numbers = ~x.isnan()
    assert torch.equal(bits(same)[numbers], bits(x)[numbers])
    assert wide[~numbers].isnan().all()


# Every bit.


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_every_pattern_of_16_bits_arrives(dtype):
    """In order, so that chunks have one sign and few exponents, and shuffled."""
    every = torch.arange(1 << 16)
    assert_arrives(from_bits(every, dtype))
    assert_arrives(from_bits(every[torch.randperm(1 << 16, generator=random(0))], dtype))


@pytest.mark.parametrize("numel", [1, 2, 511, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_any_pattern_of_32_bits_arrives(numel):
    assert_arrives(from_bits(torch.randint(0, 1 << 32, (numel,), generator=random(1)), FLOATS[0]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_hard_exponents_arrive(dtype):
    """All alike, all there are, the two ends in turn, and none of those that a sample sees."""
    finfo, size = torch.finfo(dtype), 2 * CHUNK + 3
    mantissa = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}[dtype]
    top = (1 << 8 * dtype.itemsize - 1 - mantissa) - 1
    exponents = torch.arange(size)
    sample = exponents % (CHUNK // 256) == 0
    for each in (
        torch.full((size,), top), exponents % (top + 1), exponents % 2 * top,
        torch.where(sample, top // 2, exponents % (top + 1)), torch.where(sample, 0, top),
    ):  # fmt: skip
        noise = torch.randint(0, 1 << mantissa, (size,), generator=random(2))
        sign = torch.randint(0, 2, (size,), generator=random(3)) << 8 * dtype.itemsize - 1
        assert_arrives(from_bits(sign | each << mantissa | noise, dtype))
    assert_arrives(
        torch.tensor([finfo.max, finfo.tiny, -0.0, 0.0, torch.inf, torch.nan] * 9).to(dtype)
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_of_either_sign_arrive(dtype):
    for share in (0.01, 0.04, 0.5, 0.999, 1.0):
        x = torch.randn(CHUNK + 50, generator=random(4))
        x[torch.rand(x.shape, generator=random(5)) < share] = 0.0
        assert_arrives(x.to(dtype))
        x[::101] = -0.0
        assert_arrives(x.to(dtype))


def test_nothing_arrives_as_nothing():
    assert_arrives(torch.empty(0))
    assert_arrives(torch.empty(3, 0, 2, dtype=torch.bfloat16).view(-1))


# How many bits.


def entropy(x):
    """Of the exponents."""
    counts = np.bincount(x.view(torch.int32).numpy() >> 23 & 255)
    chances = counts[counts > 0] / x.numel()
    return -(chances * np.log2(chances)).sum()


@pytest.mark.parametrize(("dtype", "plain"), [*zip(FLOATS, (24, 11, 8), strict=True)])
def test_gaussian_values_take_a_tenth_of_a_bit_more_than_their_entropy(dtype, plain):
    x = torch.randn(1 << 18, generator=random(6))
    assert 0 < per_value(x.to(dtype)) - plain - entropy(x) < 0.11


def test_bits_that_nobody_uses_are_not_sent():
    x = torch.randn(1 << 18, generator=random(7))
    assert per_value(x.bfloat16().float()) == per_value(x.bfloat16())
    assert per_value(x.half().float()) < per_value(x.half()) + 0.02


def test_a_zero_takes_a_bit():
    x = torch.randn(1 << 18, generator=random(8))
    half = torch.where(torch.rand(x.shape, generator=random(9)) < 0.5, 0.0, x)
    assert abs(per_value(half) - (1 + per_value(x) / 2)) < 0.1
    assert per_value(torch.zeros(1 << 18)) < 0.01


def test_noise_takes_no_more_than_there_is_room_for():
    for numel in (1, 2, 3, 1000, CHUNK + 1):
        x = from_bits(torch.randint(0, 1 << 32, (numel,), generator=random(10)), FLOATS[0])
        assert LOSSLESS.encode(x, KEY).numel() <= LOSSLESS.max_nbytes(numel) <= 4 * numel + 28
        half = from_bits(torch.randint(0, 1 << 16, (numel,), generator=random(11)), FLOATS[1])
        assert LOSSLESS.encode(half, KEY).numel() <= max_nbytes(numel, 2)


def test_a_prior_has_every_rank_once():
    for prior, saved in zip(PRIORS, gains()[0], strict=True):
        assert np.count_nonzero(saved) == sum(prior.top for _ in range(prior.levels))
        assert saved.max() == 16 - prior.width
        assert (np.diff(saved[:200]) <= 0).all()
        assert (np.diff(saved[200:]) >= 0).all()


# Damage.


def unpacked(backend, payload, numel, dtype=torch.float32):
    out = torch.zeros(numel, dtype=dtype)
    return bits(out) if backend.unpack_floats(payload, out) else None


@pytest.mark.parametrize("dtype", FLOATS)
def test_decoders_agree_on_every_flipped_bit(dtype):
    """With zeros left out, and with ranks that no level has."""
    x = torch.randn(150, generator=random(12))
    x[::3], x[4:9] = 0.0, torch.tensor([1e-30, 1e30, torch.inf, 1e-45, torch.nan])
    payload = LOSSLESS.encode(x.to(dtype), KEY)
    refused = 0
    for bit in range(8 * payload.numel()):
        damaged = payload.clone()
        damaged[bit // 8] ^= 1 << bit % 8
        answers = [unpacked(backend, damaged, 150) for backend in (reference, cpu)]
        assert (answers[0] is None) == (answers[1] is None)
        assert answers[0] is None or torch.equal(*answers)
        refused += answers[0] is None
    assert refused > 8 * (MARK + HEAD.itemsize) - 20  # all but a few of the head


def test_decoders_agree_on_garbage():
    generator = np.random.default_rng(0)
    whole = 0
    for _ in range(300):
        numel = int(generator.integers(1, 70))
        x = torch.from_numpy(generator.standard_t(1, numel)).float()
        payload = LOSSLESS.encode(torch.where(x.abs() < 0.5, 0.0, x), KEY).clone()
        start = MARK + int(generator.integers(0, 2)) * HEAD.itemsize
        noise = torch.from_numpy(generator.integers(0, 256, payload.numel()).astype(np.uint8))
        payload[start:] = noise[start:]
        answers = [unpacked(backend, payload, numel) for backend in (reference, cpu)]
        assert (answers[0] is None) == (answers[1] is None)
        assert answers[0] is None or torch.equal(*answers)
        whole += answers[0] is not None
    assert 0 < whole < 300


@pytest.mark.parametrize("cut", [0, 1, 3, MARK, MARK + 5, MARK + HEAD.itemsize, -4, -1])
def test_what_is_cut_short_is_refused(cut):
    payload = LOSSLESS.encode(torch.randn(1000, generator=random(13)), KEY)
    with pytest.raises(ValueError, match="damaged"):
        LOSSLESS.decode(payload[:cut], 1000, KEY)
    with pytest.raises(ValueError, match="damaged"):
        LOSSLESS.mean_into([payload, payload[:cut]], torch.empty(1000), [KEY, KEY])


def test_a_head_that_no_chunk_has_is_refused():
    payload = LOSSLESS.encode(torch.randn(1000, generator=random(14)), KEY)
    row = payload.numpy()[MARK : MARK + HEAD.itemsize].view(HEAD)
    for name, value in (("number", 1001), ("form", 25), ("form", 3 << 6), ("escapes", 65535)):
        before = row[name].copy()
        row[name] = value
        assert [unpacked(backend, payload, 1000) for backend in (reference, cpu)] == [None] * 2
        row[name] = before
    assert unpacked(cpu, payload, 1000) is not None


def test_an_exponent_that_float16_does_not_have_is_refused():
    payload = LOSSLESS.encode(torch.randn(1000, generator=random(15)).half(), KEY)
    payload[MARK] += 64  # the centre
    assert unpacked(cpu, payload, 1000) is unpacked(reference, payload, 1000) is None


def test_values_of_another_type_are_refused():
    payload = LOSSLESS.encode(torch.ones(10, dtype=torch.float16), KEY)
    with pytest.raises(ValueError, match=r"other floats than torch\.bfloat16; decode it"):
        LOSSLESS.decode_into(payload, torch.empty(10, dtype=torch.bfloat16), KEY)


def test_a_payload_at_an_odd_address_is_read():
    x = torch.randn(500, generator=random(16))
    payload = LOSSLESS.encode(x, KEY)
    moved = torch.cat((payload[:1], payload))[1:]
    assert torch.equal(LOSSLESS.decode(moved, 500, KEY), x)


# Means.


@pytest.mark.parametrize("collective", ["all_gather", "two_shot"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_mean_is_that_of_all_ranks_in_their_order(collective, dtype, world):
    """Added in float64 in the order of ranks, and what `none` has where codes are added so."""
    vectors = [torch.randn(3000, generator=random(rank)).to(dtype) for rank in range(world)]
    vectors[-1][7], vectors[0][9] = torch.inf, torch.nan
    total = torch.zeros(3000, dtype=torch.float64)
    for x in vectors:
        total += x.double()
    mean = (total * (1 / world)).float()
    mean[mean.isnan()] = torch.nan
    got = gw.simulate(LOSSLESS, vectors, KEY, collective)
    if collective == "two_shot":
        mean, got = mean.to(dtype), got.to(dtype)
    assert torch.equal(bits(got), bits(mean))
    plain = gw.simulate("none", vectors, KEY, "code_reduce").to(got.dtype)
    assert torch.equal(bits(plain)[~mean.isnan()], bits(got)[~mean.isnan()])


def test_the_order_of_ranks_is_seen():
    """A test of the test: these have another sum from the other end."""
    vectors = [torch.tensor([x]) for x in (1.0, 2.0**100, -(2.0**100))]
    assert gw.simulate(LOSSLESS, vectors, KEY) == 0.0
    assert gw.simulate(LOSSLESS, vectors[::-1], KEY) != 0.0


# The two ways to pick.


@pytest.mark.skipif(not picked._MOVES_ROWS, reason="this processor has one way to pick")
def test_rows_and_single_octets_are_picked_alike():
    octets = torch.randint(0, 256, (264 + 64,), generator=random(17), dtype=torch.uint8).numpy()
    for least in (1, 128, 255):
        flags = np.where(np.arange(len(octets)) < 264, octets[::-1], 0).astype(np.uint8)
        flags[264:] = 0
        rows, single = np.zeros_like(octets), np.zeros_like(octets)
        limit = np.uint8(least)
        number = picked._pick_rows(octets, flags, 264, limit, rows)
        assert number == picked._pick_single(octets, flags, 264, limit, single)
        assert (rows[:number] == single[:number]).all()
        assert (rows[:number] == octets[flags >= limit]).all()
        back, other = octets.copy(), octets.copy()
        assert number == picked._put_rows_back(rows, flags, 264, limit, back)
        assert number == picked._put_single_back(single, flags, 264, limit, other)
        assert (back == octets).all()
        assert (other == octets).all()
