"""The largest values of every block in Triton.

Blocks of up to 4,096 values are in registers, and memory is read once. A program has one larger
block, and selects by radix: a histogram of the exponents of those magnitudes says which exponent
the threshold has, three more say its mantissa, and a last pass writes. The first reads memory, the
others the cache.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.gpu.bitmaps import store_bitmap
from gradwire.kernels.gpu.compiler import jit, kernel, launch
from gradwire.kernels.gpu.largest import (
    NOT_FINITE,
    columns_of,
    ranked,
    reaching,
    rows_of,
    threshold,
    values_left,
)
from gradwire.kernels.gpu.tiles import GROUP, num_groups

_NAN_BITS = tl.constexpr(0x7FC00000)
_CHUNK = tl.constexpr(2048)
_BINS = tl.constexpr(256)
_NONE = tl.constexpr(0x7FFFFFFF)


@jit
def _patterns(x, at, left):
    """The bits of `left` values, and those of their magnitudes; -1 where there are none."""
    if left >= at.shape[0] * at.shape[1]:
        values = tl.load(x + at)
    else:
        values = tl.load(x + at, mask=at < left, other=0.0)
    bits = values.to(tl.float32).to(tl.int32, bitcast=True)
    return bits, tl.where(at < left, bits & 0x7FFFFFFF, -1)


@jit
def _fill_rows(kept, column, count, number, finite, inside):
    """What stands in a row after its values: zeros, or NaN in all of a row that is not finite."""
    filler = tl.where(finite, 0, _NAN_BITS).to(tl.float32, bitcast=True) + tl.zeros_like(column)
    tl.store(kept + column, filler, mask=(column >= number) & (column < count) & inside)


@kernel
def _largest_of_blocks(x, bitmap, kept, numel, count, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * GROUP
    left = values_left(numel, first)
    row, column = rows_of(BLOCK), columns_of(BLOCK)
    at = row * BLOCK + column
    bits, patterns = _patterns(x + first, at, left)
    tops = tl.max(patterns, 1, keep_dims=True)
    finite, sizes = tops < NOT_FINITE, tl.minimum(tl.maximum(left - row * BLOCK, 0), BLOCK)
    wanted = tl.minimum((sizes * count + BLOCK - 1) // BLOCK, reaching(patterns, 1))
    wanted = tl.where(finite, wanted, 0)
    least = threshold(patterns, sizes, wanted, tops)
    chosen, places = ranked(patterns, least, wanted - reaching(patterns, least + 1))
    store_bitmap(bitmap, chosen & finite, first, (numel + 63) // 64 * 8)
    start = kept + first // BLOCK * count + row * count
    tl.store(start + places - 1, bits.to(tl.float32, bitcast=True), mask=chosen & finite)
    _fill_rows(start, column, count, wanted, finite, sizes > 0)


@jit
def _digit(x, first, size, prefix, wanted, shift: tl.constexpr):
    """(digit of the threshold, how many are wanted of those that have it), 8 bits from `shift` on.

    `prefix` are the bits above them.
    """
    counts = tl.zeros((_BINS,), tl.int32)
    for start in range(0, size, _CHUNK):
        _, patterns = _patterns(x + first + start, columns_of(_CHUNK), size - start)
        alike = patterns >= 0
        if shift < 24:
            alike &= patterns >> (shift + 8) == prefix
        digits = tl.ravel((patterns >> shift) & (_BINS - 1))
        counts += tl.histogram(digits, _BINS, mask=tl.ravel(alike))
    bins = tl.arange(0, _BINS)
    after = tl.sum(counts, 0) - tl.cumsum(counts, 0)  # bits: integers
    digit = tl.max(tl.where(after + counts >= wanted, bins, 0), 0)
    return digit, wanted - tl.sum(tl.where(bins == digit, after, 0), 0)  # bits: integers


@jit
def _survey(x, first, size):
    """(the largest magnitude, how many are not zero)."""
    top, number = tl.program_id(0) * 0, tl.program_id(0) * 0
    for start in range(0, size, _CHUNK):
        _, patterns = _patterns(x + first + start, columns_of(_CHUNK), size - start)
        top = tl.maximum(top, tl.max(patterns))
        number += tl.sum((patterns > 0).to(tl.int32))  # bits: integers
    return top, number


@kernel
def _largest_of_large_blocks(x, bitmap, kept, numel, count, block):
    first = tl.program_id(0).to(tl.int64) * tl.multiple_of(block, 16)
    size = tl.minimum(numel - first, block).to(tl.int32)
    top, number = _survey(x, first, size)
    wanted = tl.minimum((size.to(tl.int64) * count + block - 1) // block, number).to(tl.int32)
    number = wanted * (top < NOT_FINITE).to(tl.int32)
    least, ties = tl.program_id(0) * 0, number
    for d in tl.static_range(4):
        digit, ties = _digit(x, first, size, least, ties, 24 - 8 * d)
        least = (least << 8) | digit
    least = tl.where(number > 0, least, _NONE)
    done, row = tl.program_id(0) * 0, kept + tl.program_id(0).to(tl.int64) * count
    for start in range(0, size, _CHUNK):
        bits, patterns = _patterns(x + first + start, columns_of(_CHUNK), size - start)
        chosen, places = ranked(patterns, least, ties)
        store_bitmap(bitmap, chosen, first + start, (numel + 63) // 64 * 8)
        values = bits.to(tl.float32, bitcast=True)
        tl.store(row + done + places - 1, values, mask=chosen)
        done += tl.max(places)
        ties = tl.maximum(ties - tl.sum((patterns == least).to(tl.int32)), 0)  # bits: integers
    for start in range(0, count, _CHUNK):
        column = start + tl.arange(0, _CHUNK)
        _fill_rows(row, column, count, number, top < NOT_FINITE, column >= 0)


def largest_of_blocks(x: Tensor, bitmap: Tensor, kept: Tensor, *, block: int) -> None:
    numel, count = x.numel(), kept.shape[1]
    if block <= GROUP.value:
        launch(_largest_of_blocks, num_groups(numel), x, bitmap, kept, numel, count, BLOCK=block)
    else:
        launch(_largest_of_large_blocks, kept.shape[0], x, bitmap, kept, numel, count, block)
