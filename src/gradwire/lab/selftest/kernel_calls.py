"""Awkward calls of every kernel: a table over `Kernels`, whose tests are in `test_kernels.py`.

A function here has the name of the kernel that it is for. Given a length and a type of floats, it
yields calls of that kernel; whoever runs one copies its arguments first. What is written to is
soiled before, so that values that a backend leaves out are seen. Inputs that only another kernel
can make are made by `cpu`.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from gradwire.kernels import cpu
from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.fields import Dither, field_width, num_words
from gradwire.kernels.formats.huffman import CHUNK, HEAD
from gradwire.kernels.formats.layout import MIN_SCALE, num_blocks, packed_nbytes
from gradwire.kernels.formats.lossless import CHUNK as LOSSLESS_CHUNK
from gradwire.kernels.formats.lossless import max_nbytes as lossless_nbytes
from gradwire.kernels.formats.rotation import padded_numel
from gradwire.kernels.formats.spectra import Form, Kept
from gradwire.kernels.reference.pack import pack_codes
from gradwire.key import Key

KEY = Key(seed=0x1234567890ABCDEF, step=7, tensor=3, rank=2, hop=1)
LENGTHS = [0, 1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1500, 5003]
BLOCKS = [8, 64, 512, 1024, None]
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
WIDTHS = range(2, 9)


class Call(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    how: dict[str, Any]


class Row(NamedTuple):
    """The calls of one kernel, and the types of floats that it takes."""

    calls: Callable[[int, torch.dtype], Iterator[Call]]
    dtypes: list[torch.dtype]


TABLE: dict[str, Row] = {}


def float32_only(calls):
    TABLE[calls.__name__] = Row(calls, FLOATS[:1])
    return calls


def every_float(calls):
    TABLE[calls.__name__] = Row(calls, FLOATS)
    return calls


def call(*args, **how):
    return Call(args, how)


# Values.


def random(seed):
    return torch.Generator().manual_seed(seed)


def finite(numel, dtype=torch.float32, seed=0):
    """Values of many magnitudes, with zeros of both signs and a subnormal among them."""
    return _finite(numel, seed).to(dtype, copy=True)


@lru_cache(64)
def _finite(numel, seed):
    magnitudes = 10 ** (-5 * torch.rand(numel, generator=random(seed)))
    x = torch.randn(numel, generator=random(seed + 1)) * magnitudes
    x[16::17], x[8::17], x[5:6] = 0, -0.0, 1e-41
    return x


def spoilt(numel, dtype=torch.float32, seed=0):
    """The same with inf and NaN, one in each of some blocks, and a block of zeros."""
    x = finite(numel, dtype, seed)
    x[300:301], x[555:556], x[1100:1101] = torch.inf, -torch.inf, torch.nan
    x[64:128] = 0
    return x


def huge(numel, dtype=torch.float32):
    """Values up to the largest there is."""
    top = torch.finfo(dtype).max
    x = finite(numel).clamp(-1, 1).double() * top
    x[3:4], x[4:5] = top, -top
    return x.to(dtype)


def vectors(numel, dtype=torch.float32):
    yield finite(numel, dtype)
    if numel > 500:
        yield spoilt(numel, dtype)
    if numel > 100:
        yield huge(numel, dtype)


def soiled(*shape, dtype=torch.float32):
    return torch.full(shape, 165 if dtype == torch.uint8 else -77, dtype=dtype)


def octets(numel, width, seed=0):
    """Packed codes of any value at all."""
    nbytes = packed_nbytes(numel, width)
    return torch.randint(0, 256, (nbytes,), generator=random(seed), dtype=torch.uint8)


def codes_up_to(top, numel, width, seed=0):
    """Packed codes from 0 to `top`, those of the padding included."""
    padded = -(-numel // 8) * 8
    codes = torch.randint(0, top + 1, (padded,), generator=random(seed))
    packed = torch.empty(packed_nbytes(numel, width), dtype=torch.uint8)
    pack_codes(codes, packed, width)
    return packed


def scales_for(numel, block, seed=1):
    """Scales of blocks, with a NaN, the least one and large ones among them."""
    scales = torch.rand(num_blocks(numel, block), generator=random(seed)) + 0.01
    scales[2::7], scales[3::7], scales[5::7] = torch.nan, MIN_SCALE, 1e30
    return scales


def units_for(x, block, levels):
    """Steps of blocks: 0 for blocks of zeros, and NaN for those that are not finite."""
    peaks = torch.empty(num_blocks(x.numel(), block))
    cpu.block_scales(x, peaks, block=block, norm="max")
    return torch.where(peaks <= MIN_SCALE, 0.0, peaks / levels)


def bitmap_nbytes(numel):
    return 8 * -(-numel // 64)


def bitmaps(numel):
    for density in (0.0, 0.002, 0.1, 0.5, 1.0):
        bits = torch.rand(numel, generator=random(5)) < density
        padded = torch.nn.functional.pad(bits, (0, 8 * bitmap_nbytes(numel) - numel))
        yield torch.from_numpy(np.packbits(padded.numpy(), bitorder="little"))


def some(ways, dtype):
    """All of them for float32; a third for floats of 16 bits, which are only read differently."""
    return ways if dtype == torch.float32 else ways[::3]


STORES = [{}, {"weight": -1 / 3, "accumulate": True}]


# Random bits, scales, and codes of levels.


@float32_only
def philox(numel, dtype):
    counters = torch.randint(0, 2**32, (numel,), generator=random(0))
    for counter, key in itertools.product((counters, counters.view(-1, 1)), (KEY, Key())):
        yield call(counter, key)


@every_float
def block_scales(numel, dtype):
    for x, block, norm in itertools.product(vectors(numel, dtype), BLOCKS, ("max", "l2")):
        yield call(x, soiled(num_blocks(numel, block)), block=block, norm=norm)


@every_float
def block_steps(numel, dtype):
    for x, block in itertools.product(vectors(numel, dtype), BLOCKS):
        ratios, segment = ratios_for(numel, block)
        yield call(x, ratios, soiled(num_blocks(numel, block)), segment=segment, block=block)


def ratios_for(numel, block):
    """Ratios of two blocks each, and how many values that are."""
    segment = 2 * block if block else None
    return 0.5 + torch.rand(num_blocks(numel, segment), generator=random(6)), segment


@every_float
def quantize(numel, dtype):
    for width, block in itertools.product(some(WIDTHS, dtype), BLOCKS):
        levels = 2 ** (width - 1) - 1
        how = {"levels": levels, "width": width, "block": block, "key": KEY, "offset": 1024}
        codes = soiled(packed_nbytes(numel, width), dtype=torch.uint8)
        for x, norm in itertools.product(vectors(numel, dtype), ("max", "l2")):
            yield call(x, soiled(num_blocks(numel, block)), codes, norm=norm, **how)
        x, scales = finite(numel, dtype), scales_for(numel, block)
        yield call(x, scales, codes, norm=None, shift=40_000, **how)
        for x, norm in zip(vectors(numel, dtype), ("max", "l2", "max"), strict=False):
            debt, room = debt_for(x, width // 2), soiled(num_blocks(numel, block))
            yield call(x, room, codes, debt, norm=norm, dithered=width % 2 == 0, **how)
        yield call(x := finite(numel), scales, codes, Debt(x), norm=None, **how)


def debt_for(x, which):
    """One of which all is due, or a part, or before anything was owed."""
    residual, shares = finite(x.numel(), seed=2), torch.tensor([0.3, 0.7])
    return Debt(soiled(x.numel()), *[(residual,), (residual, shares), ()][which % 3])


@float32_only
def dequantize(numel, dtype):
    for width, block, store in itertools.product(WIDTHS, BLOCKS, STORES):
        how = {"levels": 2 ** (width - 1) - 1, "width": width, "block": block, **store}
        yield call(scales_for(numel, block), octets(numel, width), soiled(numel), **how)


@float32_only
def dequantize_mean(numel, dtype):
    for width, block, count in itertools.product(WIDTHS, BLOCKS, range(1, 5)):
        how = {"levels": 2 ** (width - 1) - 1, "width": width, "block": block}
        scales = [scales_for(numel, block, seed) for seed in range(count)]
        codes = [octets(numel, width, seed) for seed in range(count)]
        yield call(scales, codes, soiled(numel), **how)


# Subtractive dither, nested, and exponents.


@every_float
def quantize_dithered(numel, dtype):
    codes = soiled(packed_nbytes(numel, 8), dtype=torch.uint8)
    for x, block, zero in itertools.product(vectors(numel, dtype), BLOCKS, (8, 127)):
        how = {"zero": zero, "block": block, "key": KEY, "offset": 1024}
        yield call(x, units_for(x, block, 127), codes, **how)


@float32_only
def dequantize_dithered(numel, dtype):
    for width, block, store in itertools.product(WIDTHS, BLOCKS, STORES):
        how = {"width": width, "block": block, "key": KEY, "offset": 512, **store}
        units, codes = scales_for(numel, block), octets(numel, width)
        yield call(units, codes, soiled(numel), zero=2 ** (width - 1) - 1, **how)


NESTED = [(3, 2), (5, 3), (15, 4), (251, 8)]
"""(ratio, width)"""


@every_float
def quantize_nested(numel, dtype):
    for (ratio, width), block in itertools.product(NESTED, BLOCKS):
        how = {"ratio": ratio, "width": width, "block": block, "key": KEY, "offset": 512}
        codes = soiled(packed_nbytes(numel, width), dtype=torch.uint8)
        for x in vectors(numel, dtype):
            yield call(x, units_for(x, block, 7), codes, **how)


@float32_only
def add_nested(numel, dtype):
    for (ratio, width), block in itertools.product(NESTED, BLOCKS):
        how = {"ratio": ratio, "width": width, "block": block, "key": KEY, "offset": 512}
        x = spoilt(numel)
        units, codes = units_for(x, block, 7), codes_up_to(ratio - 1, numel, width)
        total = finite(numel, seed=1)
        total[2000:2001] = torch.nan
        for weight in (1.0, 0.2):
            yield call(units, codes, total, count=3, alpha=0.9, weight=weight, **how)


EXPONENTIAL = [(2, 0), (3, 1), (4, 2), (4, 6), (5, 3), (6, 0), (7, 1), (8, 10)]
"""(width, headroom)"""


@every_float
def exp_quantize(numel, dtype):
    for (width, headroom), block in itertools.product(some(EXPONENTIAL, dtype), BLOCKS):
        how = {"width": width, "headroom": headroom, "block": block, "key": KEY, "offset": 1024}
        codes = soiled(packed_nbytes(numel, width), dtype=torch.uint8)
        for x, norm in itertools.product(vectors(numel, dtype), ("max", "l2")):
            yield call(x, soiled(num_blocks(numel, block)), codes, norm=norm, **how)
        yield call(finite(numel, dtype), scales_for(numel, block), codes, norm=None, **how)


@float32_only
def exp_dequantize(numel, dtype):
    for (width, headroom), block, store in itertools.product(EXPONENTIAL, BLOCKS, STORES):
        how = {"width": width, "headroom": headroom, "block": block, **store}
        yield call(scales_for(numel, block), octets(numel, width), soiled(numel), **how)


@float32_only
def exp_reduce(numel, dtype):
    for width in WIDTHS:
        into, term = (octets(numel, width, seed) for seed in range(2))
        yield call(into, term, width=width, key=KEY, offset=512)
        yield call(into, into.clone(), width=width, key=KEY)


# Sums.

SUMS = [(1, 1), (1, 3), (7, 2), (7, 4), (7, 18), (7, 19), (127, 2), (127, 64), (127, 200)]
"""(levels, terms): of up to 16 bits, some just below a byte and some just above."""
WIDE = (127, 1 << 23)
"""The widest field, a word."""


@every_float
def quantize_fields(numel, dtype):
    for (levels, terms), block in itertools.product(some([*SUMS, WIDE], dtype), BLOCKS):
        width = field_width(levels, terms)
        how = {"levels": levels, "width": width, "block": block, "key": KEY, "offset": 1024}
        words = soiled(num_words(numel, width), dtype=torch.int32)
        for x, norm in itertools.product(vectors(numel, dtype), ("max", "l2")):
            yield call(x, soiled(num_blocks(numel, block)), words, norm=norm, **how)
        x, scales = finite(numel, dtype), scales_for(numel, block)
        yield call(x, scales, words, norm=None, shift=40_000, **how)


def dithers(terms):
    return None, Dither(KEY, 1024, terms, 777, 65_536 - terms)


@float32_only
def dequantize_fields(numel, dtype):
    for (levels, terms), block in itertools.product([*SUMS, WIDE], BLOCKS):
        how = {"levels": levels, "width": field_width(levels, terms), "block": block}
        scales, x = scales_for(numel, block), finite(numel)
        words = torch.empty(num_words(numel, how["width"]), dtype=torch.int32)
        cpu.quantize_fields(x, scales.clone(), words, norm="max", key=KEY, **how)
        words *= terms  # the sum of what so many workers send who have the same
        for store, dither in itertools.product(STORES, dithers(terms)):
            yield call(scales, words, soiled(numel), terms=terms, dither=dither, **how, **store)


@float32_only
def add_packed(numel, dtype):
    for levels, terms in SUMS:
        width, total_width = field_width(levels, 1), field_width(levels, terms)
        nbytes = packed_nbytes(numel, width)
        codes = soiled(terms, nbytes + 24, dtype=torch.uint8)[:, 8 : 8 + nbytes]
        for seed, row in enumerate(codes):
            row.copy_(codes_up_to(2 * levels, numel, width, seed))
        total = soiled(packed_nbytes(numel, total_width), dtype=torch.uint8)
        yield call(codes, total, numel=numel, width=width, total_width=total_width)


@float32_only
def dequantize_sum(numel, dtype):
    for (levels, terms), block in itertools.product(SUMS, BLOCKS):
        width = field_width(levels, terms)
        how = {"levels": levels, "width": width, "block": block, "terms": terms}
        for store, dither in itertools.product(STORES, dithers(terms)):
            scales, total = scales_for(numel, block), octets(numel, width)
            yield call(scales, total, soiled(numel), dither=dither, **how, **store)


@every_float
def mean_floats(numel, dtype):
    for count in (1, 2, 5):
        rows = soiled(count, numel + 16, dtype=dtype)[:, 8 : 8 + numel]
        for x in (finite, spoilt, huge):
            for seed, row in enumerate(rows):
                row.copy_(x(numel, dtype) if x is huge else x(numel, dtype, seed))
            rows[-1, 300:301] = torch.inf
            for out_dtype in {dtype, torch.float32}:
                yield call(rows.clone(), soiled(numel, dtype=out_dtype), key=KEY, offset=1024)
        yield call(rows, soiled(numel, dtype=dtype), key=KEY)


# Floats without loss.


def any_floats(numel, dtype):
    """Of a law, with many zeros, of few bits, of any bits at all, and none that is not zero."""
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    top = torch.iinfo(integer).max
    for size in (numel, 2 * LOSSLESS_CHUNK + 77) if numel == LENGTHS[-1] else (numel,):
        x = torch.randn(size, generator=random(size))
        yield from vectors(size, dtype)
        yield x.to(dtype)
        yield torch.where(x > 0, x, 0.0).to(dtype)
        yield x.to(torch.bfloat16).to(dtype)
        patterns = torch.randint(-top - 1, top + 1, (size,), generator=random(size))
        yield patterns.to(integer).view(dtype)
        yield torch.zeros(size, dtype=dtype)


def packed_floats(x):
    room = torch.zeros(lossless_nbytes(x.numel()), dtype=torch.uint8)
    return room[: cpu.pack_floats(x, room)]


@every_float
def pack_floats(numel, dtype):
    for x in any_floats(numel, dtype):
        yield call(x, soiled(lossless_nbytes(x.numel()), dtype=torch.uint8))


@every_float
def unpack_floats(numel, dtype):
    for x in any_floats(numel, dtype):
        payload, size = packed_floats(x), x.numel()
        yield call(payload, soiled(size, dtype=dtype))
        yield call(payload, soiled(size))
        yield call(payload, soiled(size), weight=-0.3, accumulate=True)
        yield call(payload[:-1], soiled(size))
    for at in range(0, payload.numel() if numel else 0, 7):
        damaged = packed_floats(torch.randn(numel, generator=random(at)).to(dtype))
        damaged[at] ^= 1 << at % 8
        yield call(damaged, soiled(numel))


@every_float
def mean_packed_floats(numel, dtype):
    for x in any_floats(numel, dtype):
        others = torch.randn(2, x.numel(), generator=random(1)).to(dtype)
        payloads = [packed_floats(each) for each in (x, *others)]
        for count in (1, 3):
            yield call(payloads[:count], soiled(x.numel()))


# Elias's code.


def bytes_of_levels(numel):
    """(levels, codes): from none to all are not zero, and two that are far from each other."""
    for levels, density in itertools.product((1, 2, 7, 127), (0.0, 0.01, 0.3, 1.0, None)):
        codes = torch.randint(0, 2 * levels + 1, (numel,), generator=random(levels))
        keep = torch.rand(numel, generator=random(1)) < (density or 0.0)
        if density is None:
            keep[:1], keep[-1:], codes[:1], codes[-1:] = True, True, 0, 2 * levels
        yield levels, torch.where(keep, codes, levels).to(torch.uint8)


def bytes_of_steps(numel):
    """Codes of values of a step: few of them large, many, and a chunk of zeros among others."""
    padded = -(-numel // 8) * 8
    values = (
        torch.randn(padded, generator=random(2)) * torch.rand(padded, generator=random(3)) ** -0.5
    )
    for scale in (0.0, 0.02, 0.3, 0.8, 2.0, 6.0, 20.0, 60.0):
        levels = (scale * values).round().clamp(-127, 127)
        levels[100:101], levels[4096:] = 127 * (scale > 1), levels[4096:] * (scale != 0.3)
        yield (levels + 127).to(torch.uint8)
    levels[1::4] = 0  # so that streams differ in size
    levels[2::4] = 0
    yield (levels + 127).to(torch.uint8)
    yield torch.randint(126, 129, (padded,), generator=random(4), dtype=torch.uint8)
    yield torch.randint(0, 255, (padded,), generator=random(5), dtype=torch.uint8)


@float32_only
def huffman_encode(numel, dtype):
    for codes in bytes_of_steps(numel):
        room = soiled(codes.numel() + HEAD * -(-codes.numel() // CHUNK), dtype=torch.uint8)
        yield call(codes, room, zero=127)
        yield call(codes - 119, room, zero=8)


@float32_only
def huffman_decode(numel, dtype):
    for codes in bytes_of_steps(numel):
        stream = torch.empty(codes.numel() + HEAD * -(-codes.numel() // CHUNK), dtype=torch.uint8)
        stream = stream[: cpu.huffman_encode(codes, stream, zero=127)]
        room = soiled(codes.numel(), dtype=torch.uint8)
        yield call(stream, room, zero=127)
        for at in range(0, stream.numel() if numel < 20_000 else 0, 1 + stream.numel() // 6):
            damaged = stream.clone()
            damaged[at] ^= 1 << at % 8
            yield call(damaged, room, zero=127)
        yield call(stream[:-1], room, zero=127)


@every_float
def count_ratios(numel, dtype):
    for x, block in itertools.product(vectors(numel, dtype), BLOCKS):
        segment = max(block, 1024) if block else None
        counts = torch.zeros(num_blocks(numel, segment), 8, 96, dtype=torch.int32)
        yield call(x, counts, counts[:, :, 0].clone(), segment=segment, block=block)


def payload_room(numel, block):
    chunks = HEAD * num_blocks(numel, CHUNK)
    return soiled(
        4 * num_blocks(numel, block) + packed_nbytes(numel, 8) + chunks, dtype=torch.uint8
    )


@every_float
def encode_dithered(numel, dtype):
    for x, block in itertools.product(vectors(numel, dtype), [*BLOCKS, 1536]):
        (ratios, segment), room = ratios_for(numel, block), payload_room(numel, block)
        yield call(x, ratios, room, segment=segment, block=block, key=KEY, offset=1024)


@float32_only
def decode_dithered(numel, dtype):
    for x, block, store in itertools.product(vectors(numel, dtype), [*BLOCKS, 1536], STORES):
        (ratios, segment), room = ratios_for(numel, block), payload_room(numel, block)
        how = {"block": block, "key": KEY, "offset": 1024}
        payload = room[: cpu.encode_dithered(x, ratios, room, segment=segment, **how)]
        yield call(payload, soiled(numel), **how, **store)


@float32_only
def elias_sizes(numel, dtype):
    for levels, codes in bytes_of_levels(numel):
        yield call(codes, levels=levels)


def elias_streams(numel):
    for levels, codes in bytes_of_levels(numel):
        nonzeros, sparse_bits, dense_bits = cpu.elias_sizes(codes, levels=levels)
        for sparse, size in ((True, sparse_bits), (False, dense_bits)):
            stream = soiled(-(-size // 8), dtype=torch.uint8)
            yield codes, stream, {"levels": levels, "sparse": sparse}, nonzeros


@float32_only
def elias_encode(numel, dtype):
    for codes, stream, how, _ in elias_streams(numel):
        yield call(codes, stream, **how)


@float32_only
def elias_decode(numel, dtype):
    for codes, stream, how, nonzeros in elias_streams(numel):
        cpu.elias_encode(codes, stream, **how)
        longer = torch.cat((stream, stream.new_zeros(1)))
        for given in (stream, stream[:-1], longer):
            yield call(given, torch.zeros_like(codes), nonzeros=nonzeros, **how)


# Where values are, and the largest of them.


def count_bits(bitmap):
    return int(np.unpackbits(bitmap.numpy()).sum())


@float32_only
def gap_sizes(numel, dtype):
    for bitmap in bitmaps(numel):
        yield call(bitmap)


def gaps(numel):
    for bitmap, rice in itertools.product(bitmaps(numel), (0, 1, 3, 8, 9, 15)):
        low = soiled(packed_nbytes(count_bits(bitmap), rice), dtype=torch.uint8)
        unary = soiled(bitmap_nbytes(cpu.gap_sizes(bitmap)[rice]), dtype=torch.uint8)
        yield bitmap, low, unary, rice


@float32_only
def gap_encode(numel, dtype):
    for bitmap, low, unary, rice in gaps(numel):
        yield call(bitmap, low, unary, rice=rice)


@float32_only
def gap_decode(numel, dtype):
    for bitmap, low, unary, rice in gaps(numel):
        cpu.gap_encode(bitmap, low, unary, rice=rice)
        out, count = torch.zeros_like(bitmap), count_bits(bitmap)
        yield call(low, unary, out, rice=rice, count=count, numel=numel)
        yield call(low, unary, out, rice=rice, count=count + 1, numel=numel)
        if count:
            yield call(low, unary, out, rice=rice, count=count, numel=numel - 64)


TOP = [(8, 1), (64, 5), (512, 16), (4096, 64), (1024, 128), (8192, 300)]
"""(block, count)"""


def ties_and_zeros(numel, dtype=torch.float32):
    """Many of the same magnitude, few that are not zero, and a block of one magnitude."""
    x = finite(numel, dtype).round()
    x[600:1100] = 3.0
    return x


@every_float
def largest_of_blocks(numel, dtype):
    for x in (*vectors(numel, dtype), ties_and_zeros(numel, dtype)):
        for block, count in some(TOP, dtype):
            bitmap = soiled(bitmap_nbytes(numel), dtype=torch.uint8)
            yield call(x, bitmap, soiled(num_blocks(numel, block), count), block=block)


def rows_of_blocks(numel):
    """Rows of kept values, with levels near each other, far from each other, and out of reach."""
    spread = finite(numel) * 1e4 ** finite(numel, seed=7)
    for x in (*vectors(numel), ties_and_zeros(numel), spread, finite(numel) * 1e-38):
        for block, count in TOP:
            kept = torch.empty(num_blocks(numel, block), count)
            bitmap = torch.empty(bitmap_nbytes(numel), dtype=torch.uint8)
            cpu.largest_of_blocks(x, bitmap, kept, block=block)
            yield kept, bitmap, block


@float32_only
def fit_levels(numel, dtype):
    for (kept, _, _), bits in itertools.product(rows_of_blocks(numel), (1, 2)):
        levels = soiled(2 * len(kept), dtype=torch.uint8)
        codes = soiled(packed_nbytes(kept.numel(), bits), dtype=torch.uint8)
        yield call(kept, levels, codes, bits=bits)


@float32_only
def add_levels(numel, dtype):
    for (kept, bitmap, block), bits in itertools.product(rows_of_blocks(numel), (1, 2)):
        levels = torch.empty(2 * len(kept), dtype=torch.uint8)
        room = torch.zeros(packed_nbytes(kept.numel(), bits), dtype=torch.uint8)
        number = cpu.fit_levels(kept, levels, room, bits=bits)
        codes = room[: packed_nbytes(number, bits)]
        for weight in (1.0, -1 / 3):
            yield call(bitmap, levels, codes, soiled(numel), block=block, bits=bits, weight=weight)


# Spectra and bases.


def lengths(numel, block):
    """Besides `numel`, once, whole groups of eight blocks, which are transformed at a time."""
    return (numel, 8 * block, 17 * block + 3) if numel == LENGTHS[-1] else (numel,)


def signals(numel):
    """Ties, zeros, subnormals, values that overflow, inf and NaN."""
    x, zeros = finite(numel), torch.zeros(numel)
    bad = x.clone()
    bad[numel // 3 :: 700], bad[numel // 2 :: 900], zeros[::3] = torch.inf, torch.nan, -0.0
    return x, x.round(), zeros, x * 1e-38, x.clamp(-1, 1) * 3e38, bad


FORMS = [
    Form(8, 3, 4, 1), Form(64, 64, None, 1), Form(64, 9, 10, 5), Form(256, 96, 4, 1),
    Form(128, 5, 16, 9), Form(1024, 600, 3, 0), Form(32, 1, None, 1),
]  # fmt: skip


def room_for(numel, form):
    sizes = form.scales_nbytes(numel), bitmap_nbytes(numel), form.codes_nbytes(numel)
    return Kept(*(soiled(size, dtype=torch.uint8) for size in sizes))


def kept_of(numel, form, domain, seed):
    """What is kept of a vector."""
    x, room = finite(numel, seed=seed), room_for(numel, form)
    cpu.keep_spectra(x, [], room, None, domain=domain, form=form)
    return room


def spectra(numel):
    """(length, form, domain): every form in some domain, and strips of eight blocks once."""
    domains = itertools.cycle(("time", "fft", "dct", "fft"))
    for form in FORMS:
        for size in lengths(numel, form.block):
            yield size, form, next(domains)


@float32_only
def keep_spectra(numel, dtype):
    for size, form, domain in spectra(numel):
        others = [kept_of(size, form, domain, seed) for seed in (1, 2)]
        how = {"domain": domain, "form": form}
        for x in signals(size):
            yield call(x, [], room_for(size, form), None, **how)
            yield call(x, others, room_for(size, form), soiled(size), **how)


def damaged(kept, numel):
    """A coefficient too many or too few, a scale beyond all, and a bit where nothing is."""
    for part, at, mask in ((kept.bitmap, 0, 1), (kept.scales, 1, 0xFF), (kept.bitmap, -1, 0x80)):
        if part.numel() and (mask != 0x80 or numel % 64):
            broken = part.clone()
            broken[at] ^= mask
            yield Kept(*(broken if each is part else each for each in kept))


@float32_only
def add_spectra(numel, dtype):
    for size, form, domain in spectra(numel):
        kept = [kept_of(size, form, domain, seed) for seed in (1, 2, 3)]
        bad = room_for(size, form)
        cpu.keep_spectra(signals(size)[-1], [], bad, None, domain=domain, form=form)
        for store in STORES:
            yield call([*kept, bad], soiled(size), domain=domain, form=form, **store)
            yield call(kept[:1], soiled(size), domain=domain, form=form, **store)
        for broken in damaged(kept[0], size):
            yield call([kept[1], broken], soiled(size), domain=domain, form=form)


BASES = [(0, 2), (1, 3), (13, 4), (8, 1), (20, 0), (19, 130), (33, 7)]
"""(vectors, slices)"""


def bases(numel):
    for rank, count in BASES if numel < 1000 else BASES[2:4]:
        if numel:
            basis = finite(rank * numel, seed=1).view(rank, numel)
            slices = finite(count * numel).view(count, numel)
            yield rank, count, basis, slices.clone()
            for row, bad in zip(slices, itertools.cycle((torch.inf, torch.nan, -torch.inf))):
                row[numel // 2] = bad  # one a slice: which of two NaN a sum is, is not defined
            yield rank, count, basis, slices


@float32_only
def project(numel, dtype):
    for rank, count, basis, slices in bases(numel):
        mean = finite(count * numel, seed=2).view(count, numel)
        energies = soiled(count, 2, dtype=torch.float64)
        yield call(slices, mean, basis, soiled(rank, count), energies)


@float32_only
def combine(numel, dtype):
    for rank, count, basis, base in bases(numel):
        coefficients = finite(rank * count, seed=3).view(rank, count)
        yield call(basis, coefficients, base, soiled(count, numel))


# Rotations.

ROTATIONS = [(1, 512), (2, 1024), (3, 4096), (4, 2048), (2, 4096), (4, 512), (1, 1024)]
"""(bits, block)"""


@every_float
def quantize_rotated(numel, dtype):
    for x in (*vectors(numel, dtype), ties_and_zeros(numel, dtype)):
        for bits, block in some(ROTATIONS, dtype):
            codes = soiled(padded_numel(numel, block) // 8 * bits, dtype=torch.uint8)
            scales = soiled(num_blocks(numel, block))
            yield call(x, scales, codes, bits=bits, block=block, key=KEY, offset=3 * block)


@float32_only
def dequantize_rotated(numel, dtype):
    for (bits, block), store in itertools.product(ROTATIONS, STORES):
        padded = padded_numel(numel, block)
        for count in (1, 2, 3):
            codes = [octets(padded, bits, seed) for seed in range(count)]
            scales = [scales_for(numel, block, seed) for seed in range(1, count + 1)]
            how = {"bits": bits, "block": block, "key": KEY, "offset": block, **store}
            yield call(scales, codes, soiled(numel), **how)


# Thin factors of a matrix.


def matrices(numel):
    """Ranks, and matrices that are wide or tall; one has values that are not finite."""
    for rank, rows, columns in (
        (4, 5, numel),
        (6, 2, numel),
        (1, numel, 3),
        (4, min(numel, 90), 37),
    ):
        x = finite(rows * columns).view(rows, columns)
        yield rank, x
        if rows == 5 and numel > 500:
            spoilt_one = x.clone()
            spoilt_one[1, 3], spoilt_one[4, 5] = torch.inf, torch.nan
            yield rank, spoilt_one


def factor(rank, size, seed):
    return finite(rank * size, seed=seed).view(rank, size)


@float32_only
def row_products(numel, dtype):
    for rank, x in matrices(numel):
        for extra in (None, torch.randn(x.shape, generator=random(3))):
            yield call(x, extra, factor(rank, x.shape[1], 4), soiled(rank, x.shape[0]))


@float32_only
def column_products(numel, dtype):
    for rank, x in matrices(numel):
        for extra in (None, torch.randn(x.shape, generator=random(3))):
            yield call(x, extra, factor(rank, x.shape[0], 4), soiled(rank, x.shape[1]))


@float32_only
def add_outer(numel, dtype):
    for rank, x in matrices(numel):
        for how in ({}, {"accumulate": True}):
            yield call(factor(rank, x.shape[0], 4), factor(rank, x.shape[1], 5), x, **how)


@float32_only
def settle_outer(numel, dtype):
    for rank, x in matrices(numel):
        p, (mean, own) = factor(rank, len(x), 4), (factor(rank, x.shape[1], s) for s in (5, 6))
        yield call(x, torch.randn(x.shape, generator=random(3)), p, mean, own)


@float32_only
def orthonormalize(numel, dtype):
    """Of any rank, the last row being the sum of others, a row of zeros, and one of inf."""
    for rank in (1, 4, 7):
        rows = torch.randn(rank, numel, generator=random(7))
        yield call(rows)
        yield call(torch.cat((rows, rows[:1] + rows[-1:])))
        yield call(torch.cat((torch.zeros(1, numel), 1e-30 * rows)))
        rows = rows.clone()
        rows[-1, -1:] = torch.inf
        yield call(torch.cat((rows, torch.ones(1, numel))))
