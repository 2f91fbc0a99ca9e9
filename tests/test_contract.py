"""The laws of `codec.py` over every registered codec: a new one is tested by being registered."""

import json

import pytest
import torch

import gradwire as gw
from gradwire import kernels
from gradwire.codecs import REGISTRY
from gradwire.kernels import reference
from gradwire.kernels.exact import is_finite
from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.reference import tiles as reference_tiles
from laws import (
    EXAMPLES,
    adder_of,
    alone,
    assert_follows,
    assert_unbiased,
    bias_z,
    block_of,
    edge_sizes,
    is_summed_by_network,
    roundtrip,
    said,
)

KEY = gw.Key(seed=3, step=5, tensor=2, rank=1)
SUMMABLE = [spec for spec in EXAMPLES if isinstance(gw.parse(spec), gw.SummableCodec)]
BY_NETWORK = [spec for spec in SUMMABLE if is_summed_by_network(gw.parse(spec))]
UNBIASED = [spec for spec in EXAMPLES if gw.parse(spec).unbiased]
STOCHASTIC = [spec for spec in UNBIASED if spec not in ("none", "lossless")]


@pytest.fixture(params=EXAMPLES)
def codec(request: pytest.FixtureRequest) -> gw.Codec:
    return gw.parse(request.param)


def values(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def test_every_codec_has_an_example():
    assert all(entry.examples for entry in REGISTRY.values())


def test_spelling(codec):
    assert eval(repr(codec), {name: getattr(gw, name) for name in gw.__all__}) == codec
    assert gw.parse(str(codec)) == codec
    settings = json.loads(json.dumps(codec.settings()))
    assert REGISTRY[codec.name].make(**settings) == codec


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_any_length_and_type(codec, dtype):
    for numel in edge_sizes(codec):
        x = values(numel).to(dtype)
        before = x.clone()
        payload = codec.encode(x, KEY)
        kept = payload.clone()
        y = codec.decode(payload, numel, KEY)
        assert torch.equal(x, before), "encode changed its input"
        assert torch.equal(payload, kept), "decode changed the payload"
        assert y.shape == (numel,)
        assert y.dtype == torch.float32
        assert y.isfinite().all()


def hard_to_code(numel: int) -> list[torch.Tensor]:
    """Values that take many bits, or many of which take the most: noise, extremes, rare ones."""
    signs = values(numel, seed=1).sign()
    spikes = torch.where(torch.arange(numel) % 9 == 4, 1e4, 1.0) * signs
    spoilt = values(numel)
    spoilt[:1] = torch.nan
    spread = values(numel, seed=2) * 10 ** values(numel, seed=3)
    return [values(numel), signs, spikes, spread, spoilt]


def test_payload_size(codec):
    for numel in edge_sizes(codec):
        for x in hard_to_code(numel):
            size = codec.encode(x, KEY).numel()
            assert size <= codec.max_nbytes(numel)
            if codec.fixed_size:
                assert size == codec.max_nbytes(numel)


def test_zeros_stay_zeros(codec):
    for numel in edge_sizes(codec):
        assert torch.equal(roundtrip(codec, torch.zeros(numel)), torch.zeros(numel))


def test_same_key_same_bytes(codec):
    x = values(2000)
    assert torch.equal(codec.encode(x, KEY), codec.encode(x.clone(), KEY))


@pytest.mark.parametrize("spec", STOCHASTIC)
@pytest.mark.parametrize("field", ["seed", "step", "tensor", "rank", "hop"])
def test_another_key_other_bytes(spec, field):
    codec, x = gw.parse(spec), values(20_000)
    other = KEY.of(**{field: getattr(KEY, field) + 1})
    first, second = codec.encode(x, KEY), codec.encode(x, other)
    same = first.shape == second.shape and torch.equal(first, second)
    assert same == (codec.name == "eden" and field == "rank")  # all workers rotate alike


@pytest.mark.parametrize("poison", [float("inf"), float("-inf"), float("nan")])
def test_a_value_that_is_not_finite_spoils_its_block_and_no_more(codec, poison):
    numel = 3 * 1024 + 100
    block = block_of(codec, numel)
    x = values(numel)
    x[1030] = poison
    y = roundtrip(codec, x)
    spoilt = torch.arange(numel) // block == 1030 // block
    assert not y[spoilt].isfinite().any()
    assert y[~spoilt].isfinite().all()


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_owed_is_what_the_payload_does_not_say(codec, dtype, share):
    """As if the sum was made first, and what is said of it taken off: to the last bit."""
    if not codec.feeds_back:
        pytest.skip("payloads of this codec need each other")
    offset = 2 * (codec.grain or 0)
    for numel in edge_sizes(codec):
        x, residual = values(numel).to(dtype), values(numel, seed=9) / 3
        rest = residual * share + x
        payload, got = (torch.empty(codec.max_nbytes(numel), dtype=torch.uint8) for _ in range(2))
        payload = payload[: codec.encode_into(rest, payload, KEY, offset)]
        codec.subtract(payload, rest, KEY, offset)
        if share < 1:
            rest += residual * (1 - share)
        before = x.clone(), residual.clone()
        debt = debt_of(residual, share)
        got = got[: codec.encode_owing_into(x, debt, got, KEY, offset)]
        assert torch.equal(got, payload)
        assert torch.equal(debt.owed.view(torch.int32), rest.view(torch.int32))
        assert torch.equal(x, before[0])
        assert torch.equal(residual, before[1])


def debt_of(residual: torch.Tensor, share: float) -> Debt:
    room = torch.full_like(residual, torch.nan)
    return Debt(room, residual, None if share == 1 else torch.tensor([share, 1 - share]))


@pytest.mark.parametrize("spec", SUMMABLE)
@pytest.mark.parametrize("collective", ["code_reduce", "all_reduce"])
def test_an_adder_subtracts_what_it_encodes(spec, collective):
    codec, x = gw.parse(spec), values(3 * 512 + 5)
    if collective == "all_reduce" and spec not in BY_NETWORK:
        pytest.skip("this codec is not summed by the network")
    adder = adder_of(codec, collective, 3, codec.statistics(x))
    codes, got = (torch.empty(adder.code_nbytes(x.numel()), dtype=torch.uint8) for _ in range(2))
    adder.encode(x, codes, KEY, 1024)
    adder.subtract(codes, rest := x.clone(), KEY, 1024)
    adder.encode_and_subtract(x, got, KEY, 1024)
    assert torch.equal(got, codes)
    assert torch.equal(x.view(torch.int32), rest.view(torch.int32))


def test_a_vector_is_followed(codec):
    x = values(2048)
    assert_follows(codec, x, roundtrip(codec, x))
    with pytest.raises(AssertionError):
        assert_follows(codec, x, torch.zeros(2048))


@pytest.mark.parametrize("exponent", [-80, -20, 13])
def test_any_magnitude(codec, exponent):
    """A power of two more in what goes in is a power of two more in what comes out, exactly."""
    x, scale = values(2048), 2.0**exponent
    if str(alone(codec, 2048)) == "fp16":
        x, scale = x.clamp(-8, 8), 2.0 ** (exponent // 16)
        x[x.abs() < 2.0**-9] = 0  # 2^-5 times the others is not short of bits
    y, scaled = roundtrip(codec, x), roundtrip(codec, x * scale)
    assert torch.equal(scaled, y * scale)
    assert_follows(codec, x, scaled / scale)


def test_what_is_too_small_for_a_scale_stays_small(codec):
    x = values(2048) * 1e-38
    y = roundtrip(codec, x)
    assert y.isfinite().all()
    assert (y - x).abs().max() <= 2.0**-100


def test_pieces_cut_at_the_grain_decode_to_the_whole(codec):
    """Also at odd multiples: what a grain is must not depend on where pieces happen to start."""
    if codec.grain is None:
        pytest.skip("this codec may not be cut")
    x, step = values(min(5000, 4 * codec.grain + 100)), codec.grain
    whole = roundtrip(codec, x, KEY)
    for start in range(0, x.numel(), step):
        piece = x[start : start + step]
        out = torch.empty(codec.max_nbytes(piece.numel()), dtype=torch.uint8)
        payload = out[: codec.encode_into(piece, out, KEY, start)]
        decoded = torch.empty(piece.numel())
        codec.decode_into(payload, decoded, KEY, start)
        assert torch.equal(decoded, whole[start : start + step])


def test_weight_and_accumulate(codec):
    x, base = values(3000), values(3000, seed=1)
    payload = codec.encode(x, KEY)
    added, written = base.clone(), torch.full((3000,), torch.nan)
    codec.decode_into(payload, added, KEY, weight=-0.25, accumulate=True)
    codec.decode_into(payload, written, KEY, weight=-0.25)
    y = codec.decode(payload, 3000, KEY)
    torch.testing.assert_close(added, base - 0.25 * y, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(written, -0.25 * y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_mean_of_payloads_is_that_of_what_each_says(codec, world):
    """Each decoded by itself with its own key, somewhere in a longer vector."""
    offset = codec.grain or 0
    vectors = [values(1500, seed=rank) for rank in range(world)]
    keys = [KEY.of(rank=rank) for rank in range(world)]
    payloads, said = [], torch.empty(world, 1500)
    for x, key, row in zip(vectors, keys, said, strict=True):
        room = torch.empty(codec.max_nbytes(1500), dtype=torch.uint8)
        payloads.append(room[: codec.encode_into(x, room, key, offset)])
        codec.decode_into(payloads[-1], row, key, offset)
    mean = torch.full((1500,), torch.nan)
    codec.mean_into(payloads, mean, keys, offset)
    torch.testing.assert_close(mean, said.mean(0), rtol=1e-5, atol=1e-5)


def test_payloads_of_another_length_are_refused(codec):
    payload = codec.encode(values(1000), KEY)
    with pytest.raises(ValueError, match=r"expected|damaged|promises|holds|ends"):
        codec.decode(payload[:-1], 1000, KEY)
    with pytest.raises(ValueError, match=r"expected|damaged|promises|holds|followed"):
        codec.decode(torch.cat((payload, payload[:1])), 1000, KEY)


def misses_the_mean(spec, collective, world):
    """By how much the mean misses that of what the workers' messages say, each by itself.

    In units of what rounding to float32 allows.
    """
    codec = gw.parse(spec)
    vectors = [values(1000, seed=rank) for rank in range(world)]
    got = gw.simulate(codec, vectors, KEY, collective).double()
    found = torch.stack(said(codec, vectors, KEY, collective)).double()
    if spec in ("fp16", "bf16") and world > 2:  # the mean is rounded once more
        return ((got - found.mean(0)).abs() / STEPS[spec] / found.abs().amax(0)).max()
    largest = found.abs().amax(0)
    if isinstance(codec, gw.THC):  # sums of a whole block are rounded
        largest = largest.amax()
    return ((got - found.mean(0)).abs() / 2.0**-22 / largest.clamp_min(1e-30)).max()


STEPS = {"fp16": 2.0**-10, "bf16": 2.0**-7}
"""The distance of two neighbours, over the lower one."""
SUMS = [(spec, "all_reduce") for spec in BY_NETWORK] + [
    (spec, "code_reduce") for spec in SUMMABLE if "exponential" not in spec
]
"""Exponential codes round their sums: see test_exponential.py."""


@pytest.mark.parametrize(("spec", "collective"), SUMS)
@pytest.mark.parametrize("world", [1, 2, 3, 64])
def test_sums_decode_to_the_mean(spec, collective, world):
    assert misses_the_mean(spec, collective, world) <= 1


@pytest.mark.parametrize(("spec", "collective"), SUMS)
def test_the_test_of_sums_rejects_a_mean_that_is_too_large(spec, collective, monkeypatch):
    codec = gw.parse(spec)
    kind = type(adder_of(codec, collective, 3, codec.statistics(values(1000))))
    decode = kind.decode

    def larger(self, total, out, *rest):
        decode(self, total, out, *rest)
        out.mul_(1.02)

    monkeypatch.setattr(kind, "decode", larger)
    assert misses_the_mean(spec, collective, 3) > 1


@pytest.mark.parametrize("spec", SUMMABLE)
@pytest.mark.parametrize("world", [1, 3])
def test_what_the_codes_of_a_worker_say_follows_its_vector(spec, world):
    codec = gw.parse(spec)
    vectors = [values(2048, seed=rank) for rank in range(world)]
    for x, told in zip(vectors, said(codec, vectors, KEY, "code_reduce"), strict=True):
        assert_follows(codec, x, told)
        with pytest.raises(AssertionError):
            assert_follows(codec, x, -told)


@pytest.mark.parametrize("spec", UNBIASED)
def test_unbiased(spec):
    assert_unbiased(gw.parse(spec), values(600))


@pytest.mark.parametrize("spec", STOCHASTIC)
def test_the_test_of_bias_rejects_a_truncating_twin(spec, monkeypatch):
    monkeypatch.setattr(kernels, "for_device", lambda device: reference)
    monkeypatch.setattr(
        reference_tiles, "half_words", lambda c, rows, size, k: torch.zeros(rows, size).long()
    )
    assert bias_z(gw.parse(spec), values(600), 50).max() > 5


def test_sparse_and_integer_tensors_are_refused(codec):
    with pytest.raises(TypeError, match=r"float32, float16 or bfloat16, got torch\.int64"):
        codec.encode(torch.ones(4, dtype=torch.int64), KEY)
    with pytest.raises(TypeError, match="to_dense"):
        codec.encode(torch.ones(4).to_sparse(), KEY)


@pytest.mark.parametrize("poison", [float("inf"), float("-inf"), float("nan")])
def test_one_value_that_is_not_finite_is_found(poison):
    x = values(1000)
    assert is_finite(x)
    assert is_finite(x[:0])
    for place in (0, 500, 999):
        spoilt = x.clone()
        spoilt[place] = poison
        assert not is_finite(spoilt)
