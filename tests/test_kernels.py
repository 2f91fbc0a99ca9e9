"""Every backend has the kernels of the protocol and the bits of the reference, which is right."""

import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import kernels
from gradwire.kernels import cpu, reference
from gradwire.kernels.cpu.threads import set_num_threads
from gradwire.kernels.formats.layout import MIN_SCALE, num_blocks, packed_nbytes
from gradwire.kernels.reference.elias import omega
from gradwire.key import Key
from gradwire.lab.selftest import kernel_calls
from gradwire.lab.selftest.kernel_calls import LENGTHS, TABLE
from gradwire.lab.selftest.kernel_calls.values import BLOCKS, KEY
from gradwire.lab.selftest.kernels import complaint

BACKENDS = [reference, cpu]
NAMES = [name for name in dir(kernels.Kernels) if not name.startswith("_")]
SHARED = {"__init__", "pack", "tiles", "transforms"}
"""Files of every backend that are no operation."""
NUMBA = {
    "butterflies",
    "calls",
    "chunk_reader",
    "chunk_tables",
    "chunk_writer",
    "compiler",
    "debt",
    "digits",
    "exponents",
    "float_reader",
    "float_writer",
    "fourier",
    "gaussian",
    "intrinsics",
    "kept",
    "lanes",
    "largest",
    "octets",
    "patterns",
    "picked",
    "rangefloat",
    "rotation",
    "sample",
    "skinny",
    "streams",
    "threads",
    "words",
}
"""Files that only Numba needs."""


# The protocol.


def declared(name):
    """A kernel as the protocol has it, without `self`."""
    signature = inspect.signature(getattr(kernels.Kernels, name))
    return signature.replace(parameters=list(signature.parameters.values())[1:])


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_has_the_kernels_of_the_protocol(backend):
    assert sorted(backend.__all__) == NAMES
    for name in NAMES:
        assert inspect.signature(getattr(backend, name)) == declared(name), name


def test_a_caller_is_checked_against_the_protocol():
    assert typing.get_type_hints(kernels.for_device)["return"] is kernels.Kernels


def test_every_kernel_is_in_the_file_of_its_operation():
    for name in NAMES:
        homes = {f.__module__.split(".")[-1] for f in (getattr(kernels.Kernels, name),
                 *(getattr(backend, name) for backend in BACKENDS))}  # fmt: skip
        assert len(homes) == 1, name


@pytest.mark.parametrize(("backend", "extra"), [(reference, set()), (cpu, NUMBA)])
def test_every_backend_has_the_same_files(backend, extra):
    folder, protocol = (
        {path.stem for path in Path(package.__file__).parent.glob("*.py")}
        for package in (backend, kernels.protocol)
    )
    assert folder == protocol | SHARED | extra


def test_codecs_are_imported_without_numba():
    code = "import sys, gradwire.codecs; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The same bits.


def test_every_kernel_is_in_the_table():
    """A kernel of the protocol needs calls in `kernel_calls`, in the file of its operation."""
    assert sorted(TABLE) == NAMES
    for name, row in TABLE.items():
        home = getattr(kernels.Kernels, name).__module__.split(".")[-1]
        assert row.calls.__module__ == f"{kernel_calls.__name__}.{home}", name


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(name, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}")
     for name, row in TABLE.items() for dtype in row.dtypes],
)  # fmt: skip
def test_every_kernel_equals_the_reference(name, dtype):
    expected, got = (getattr(backend, name) for backend in BACKENDS)
    for numel in LENGTHS:
        for call in TABLE[name].calls(numel, dtype):
            assert complaint(expected, got, call) is None, (numel, call.how)


@pytest.mark.parametrize("name", TABLE)
def test_a_kernel_that_does_nothing_is_noticed(name):
    """At every length at which there is anything to do."""
    kernel = getattr(reference, name)
    for numel in (1, 8, 513):
        calls = TABLE[name].calls(numel, torch.float32)
        assert any(complaint(kernel, lambda *_, **__: None, call) for call in calls)


@pytest.mark.parametrize("name", TABLE)
def test_threads_do_not_change_the_bits(name):
    kernel = getattr(cpu, name)

    def together(*args, **how):
        set_num_threads(3)
        try:
            return kernel(*args, **how)
        finally:
            set_num_threads(1)

    for call in TABLE[name].calls(300_001, torch.float32):
        assert complaint(kernel, together, call) is None, call.how


def test_there_is_no_kernel_without_a_thread():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        set_num_threads(0)


# What the reference says is right.


@pytest.mark.parametrize("backend", BACKENDS)
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


def gaussian(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_block_scales_are_norms(norm):
    for block in BLOCKS:
        x, scales = gaussian(5003), torch.empty(num_blocks(5003, block))
        cpu.block_scales(x, scales, block=block, norm=norm)
        order = float("inf") if norm == "max" else 2
        exact = torch.stack([part.double().norm(order) for part in x.split(block or 5003)])
        torch.testing.assert_close(scales.double(), exact, rtol=2e-7, atol=0)


def round_trip(x, scales, *, norm, **how):
    codes, out = torch.empty(packed_nbytes(x.numel(), how["width"])).byte(), torch.empty_like(x)
    cpu.quantize(x, scales, codes, norm=norm, key=KEY, **how)
    cpu.dequantize(scales, codes, out, **how)
    return codes, out


def test_given_scales_are_used_as_they_are():
    x, scales = gaussian(1000) / 8, torch.full((2,), 0.5)
    _, out = round_trip(x, scales, norm=None, levels=7, width=4, block=512)
    assert torch.equal(scales, torch.full((2,), 0.5))
    assert (out - x).abs().max() <= 0.5 / 7


@pytest.mark.parametrize("levels", [1, 64, 127])
def test_extremes_stay_within_their_levels(levels):
    """At 127 levels the product x * (levels / scale) may round to a hair above the top."""
    x, scales = gaussian(512 * 400).view(-1, 512), torch.empty(400)
    x[:, ::2] = x.abs().amax(1, keepdim=True) * torch.tensor([1.0, -1.0]).repeat(128)
    x = x.reshape(-1)
    codes, out = round_trip(x, scales, norm="max", levels=levels, width=8, block=512)
    assert int(codes.max()) <= 2 * levels
    top = scales.repeat_interleave(512)[::2]
    torch.testing.assert_close(out[::2].abs(), top, rtol=1e-6, atol=0)


def test_scales_are_never_below_the_least():
    scales = torch.empty(2)
    cpu.block_scales(torch.full((600,), 1e-40), scales, block=512, norm="max")
    assert torch.equal(scales, torch.full((2,), MIN_SCALE))


@pytest.mark.parametrize(
    ("number", "code"),
    [(1, "0"), (2, "100"), (3, "110"), (4, "101000"), (7, "101110"), (8, "1110000"),
     (15, "1111110"), (16, "10100100000"), (17, "10100100010")],
)  # fmt: skip
def test_elias_omega_vectors(number, code):
    assert omega(number) == code


def test_elias_omega_lengths():
    lengths = {31: 11, 63: 12, 127: 13, 255: 14, 511: 16, 1023: 17, 2047: 18, 65535: 23, 65536: 28}
    assert {k: len(omega(k)) for k in lengths} == lengths


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
def test_elias_codes_come_back(case):
    levels, codes = case
    nonzeros, *sizes = cpu.elias_sizes(codes, levels=levels)
    for sparse, size in zip((True, False), sizes, strict=True):
        stream, decoded = torch.empty(-(-size // 8)).byte(), torch.empty_like(codes)
        how = {"levels": levels, "sparse": sparse}
        cpu.elias_encode(codes, stream, **how)
        assert cpu.elias_decode(stream, decoded, nonzeros=nonzeros, **how)
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
