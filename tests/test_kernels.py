"""The kernels of every backend equal the reference bit for bit, and the reference is right."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.kernels import cpu, reference
from gradwire.kernels.formats.layout import MIN_SCALE, num_blocks, packed_nbytes
from gradwire.key import Key

KEY = Key(seed=0x1234567890ABCDEF, step=7, tensor=3, rank=2, hop=1)
BLOCKS = [8, 64, 128, 512, 1024, None]
LENGTHS = [0, 1, 8, 127, 511, 512, 513, 1500, 5003]


def bits(x):
    return x.view(torch.int32) if x.is_floating_point() else x


def awkward(numel, dtype, seed=0):
    """Gaussian values with zeros, a subnormal, an inf and a NaN among them."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * 1e-3
    x[::17] = 0
    if numel > 1200:
        x[5], x[555], x[1100] = 1e-41, float("inf"), float("nan")
    return x.to(dtype)


@pytest.mark.parametrize("backend", [reference, cpu])
def test_philox_gives_the_published_vectors(backend):
    ones = 0xFFFFFFFF
    cases = [
        ((0, Key()), "5f6fb709 0d893f64 4f121f81 4f730a48"),
        (
            (ones, Key(seed=2**64 - 1, step=ones, tensor=ones, rank=0xFFFFFF, hop=0xFF)),
            "5207ddc2 45165e59 4d8ee751 8c52f662",
        ),
        (
            (0x243F6A88, Key(seed=0x299F31D0A4093822, tensor=0x85A308D3, rank=0x198A2E,
                             hop=0x13, step=0x03707344)),
            "4dfccaba 190a87f0 c47362ba b6b5242a",
        ),
    ]  # fmt: skip
    for (counter, key), expected in cases:
        words = backend.philox(torch.tensor([counter]), key)[:, 0].tolist()
        assert " ".join(f"{word:08x}" for word in words) == expected


def run(backend, x, levels, width, block, norm):
    scales = torch.empty(num_blocks(x.numel(), block))
    codes = torch.empty(packed_nbytes(x.numel(), width), dtype=torch.uint8)
    options = {"levels": levels, "width": width, "block": block}
    backend.quantize(x, scales, codes, **options, norm=norm, key=KEY, offset=1024)
    written, added = torch.empty(x.numel()), torch.ones(x.numel())
    backend.dequantize(scales, codes, written, **options)
    backend.dequantize(scales, codes, added, **options, weight=1 / 3, accumulate=True)
    others = codes.flip(0).bitwise_and(codes)
    means = [torch.empty(x.numel()) for _ in range(4)]
    for count, mean in enumerate(means, start=1):
        backend.dequantize_mean([scales] * count, [codes, others, codes, codes][:count], mean,
                                **options)  # fmt: skip
    return scales, codes, written, added, *means


@pytest.mark.parametrize("width", range(2, 9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", ["max", "l2"])
def test_quantize_equals_the_reference(width, dtype, norm):
    for block in BLOCKS:
        for numel in LENGTHS:
            x = awkward(numel, dtype)
            levels = 2 ** (width - 1) - 1
            expected = run(reference, x, levels, width, block, norm)
            got = run(cpu, x, levels, width, block, norm)
            for a, b in zip(expected, got, strict=True):
                assert torch.equal(bits(a), bits(b)), (block, numel)


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_block_scales_equal_the_reference_and_the_norm(norm):
    for block in BLOCKS:
        x = torch.randn(5003, generator=torch.Generator().manual_seed(1))
        expected, got = torch.empty(num_blocks(5003, block)), torch.empty(num_blocks(5003, block))
        reference.block_scales(x, expected, block=block, norm=norm)
        cpu.block_scales(x, got, block=block, norm=norm)
        assert torch.equal(expected, got)
        order = float("inf") if norm == "max" else 2
        exact = torch.stack([part.double().norm(order) for part in x.split(block or 5003)])
        torch.testing.assert_close(got.double(), exact, rtol=2e-7, atol=0)


def test_given_scales_are_used_as_they_are():
    x = awkward(1000, torch.float32)
    for backend in (reference, cpu):
        scales = torch.full((2,), 0.5)
        codes = torch.empty(packed_nbytes(1000, 4), dtype=torch.uint8)
        backend.quantize(x, scales, codes, levels=7, width=4, block=512, norm=None, key=KEY)
        assert torch.equal(scales, torch.full((2,), 0.5))
        out = torch.empty(1000)
        backend.dequantize(scales, codes, out, levels=7, width=4, block=512)
        assert (out - x).abs().max() <= 0.5 / 7


@pytest.mark.parametrize("levels", [1, 64, 127])
def test_extremes_stay_within_their_levels(levels):
    """At 127 levels the product x * (levels / scale) may round to a hair above the top."""
    x = torch.randn(512 * 400, generator=torch.Generator().manual_seed(2)).view(-1, 512)
    x[:, ::2] = x.abs().amax(1, keepdim=True) * torch.tensor([1.0, -1.0]).repeat(128)
    x = x.reshape(-1)
    scales, codes, written, *_ = run(cpu, x, levels, 8, 512, "max")
    assert int(codes.max()) <= 2 * levels
    top = scales.repeat_interleave(512)[::2]
    torch.testing.assert_close(written[::2].abs(), top, rtol=1e-6, atol=0)


def test_scales_are_never_below_the_least():
    scales, *_ = run(cpu, torch.full((600,), 1e-40), 7, 4, 512, "max")
    assert torch.equal(scales, torch.full((2,), MIN_SCALE))


def run_with_scales(x, block):
    scales = torch.empty(num_blocks(x.numel(), block))
    cpu.block_scales(x, scales, block=block, norm="max")
    return scales, *run(cpu, x, 7, 4, block, "max")


@pytest.mark.parametrize("block", [512, 1024, None])
def test_threads_do_not_change_the_bits(block):
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(3))
    alone = run_with_scales(x, block)
    cpu.set_num_threads(3)
    try:
        together = run_with_scales(x, block)
    finally:
        cpu.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        cpu.set_num_threads(0)


@pytest.mark.parametrize(
    ("number", "code"),
    [(1, "0"), (2, "100"), (3, "110"), (4, "101000"), (7, "101110"), (8, "1110000"),
     (15, "1111110"), (16, "10100100000"), (17, "10100100010")],
)  # fmt: skip
def test_elias_omega_vectors(number, code):
    assert reference.omega(number) == code


def test_elias_omega_lengths():
    lengths = {31: 11, 63: 12, 127: 13, 255: 14, 511: 16, 1023: 17, 2047: 18, 65535: 23, 65536: 28}
    assert {k: len(reference.omega(k)) for k in lengths} == lengths


@st.composite
def code_lists(draw):
    levels = draw(st.sampled_from([1, 2, 7, 127]))
    density = draw(st.sampled_from([0.0, 0.01, 0.3, 1.0]))
    numel = draw(st.integers(0, 400))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    codes = torch.randint(0, 2 * levels + 1, (numel,), generator=generator)
    keep = torch.rand(numel, generator=generator) < density
    return levels, torch.where(keep, codes, levels).to(torch.uint8)


@settings(max_examples=60, deadline=None)
@given(code_lists())
def test_elias_round_trip_and_equality(case):
    levels, codes = case
    nonzeros, sparse_bits, dense_bits = reference.elias_sizes(codes, levels=levels)
    assert cpu.elias_sizes(codes, levels=levels) == (nonzeros, sparse_bits, dense_bits)
    for sparse, size in ((True, sparse_bits), (False, dense_bits)):
        streams = [torch.empty(-(-size // 8), dtype=torch.uint8) for _ in range(2)]
        for backend, stream in zip((reference, cpu), streams, strict=True):
            backend.elias_encode(codes, stream, levels=levels, sparse=sparse)
        assert torch.equal(*streams)
        for backend in (reference, cpu):
            decoded = torch.empty_like(codes)
            assert backend.elias_decode(
                streams[0], decoded, levels=levels, sparse=sparse, nonzeros=nonzeros
            )
            assert torch.equal(decoded, codes)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_elias_decoders_agree_on_garbage(stream, numel, nonzeros, sparse):
    data = torch.tensor(list(stream), dtype=torch.uint8)
    answers = []
    for backend in (reference, cpu):
        codes = torch.zeros(numel, dtype=torch.uint8)
        whole = backend.elias_decode(data, codes, levels=7, sparse=sparse, nonzeros=nonzeros)
        answers.append((whole, codes if whole else None))
    assert answers[0][0] == answers[1][0]
    if answers[0][0]:
        assert torch.equal(answers[0][1], answers[1][1])
