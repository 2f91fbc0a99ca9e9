"""Values as signs and levels in Triton.

torch sorts the magnitudes of every row, as integers. A thread then has a row, and adds them up in
their order, because float64 rounds otherwise in another. Codes are written one by one to where
those of earlier rows end, and packed by another launch.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import layout, levels
from gradwire.kernels.gpu.bitmaps import SPAN, bits_up_to, load_bits
from gradwire.kernels.gpu.compiler import THREADS, jit, kernel, launch, single
from gradwire.kernels.gpu.kept import load_codes
from gradwire.kernels.gpu.pack import pack_tiles

_ROWS, _VALUES = tl.constexpr(THREADS), tl.constexpr(1024)
_EIGHTH = tl.constexpr(layout.TILE // 8)
_INF_BITS = tl.constexpr(0x7F800000)
_SHIFT, _TOP, _STEP_BITS = (tl.constexpr(x) for x in (levels.SHIFT, levels.TOP, levels.STEP_BITS))
_LAST, _NEAR, _REACH = (tl.constexpr(x) for x in (levels.LAST_STEP, levels.NEAR, levels.REACH))
_SPOILT, _HALF = tl.constexpr(levels.SPOILT), tl.constexpr(1 << (levels.SHIFT - 1))


@jit
def _load_wide(start, j, inside):
    """Magnitude `j` of every row, in float64."""
    pattern = tl.load(start + j, mask=inside, other=0)
    return pattern.to(tl.float32, bitcast=True).to(tl.float64)


@jit
def _rise(step):
    return tl.where(step <= _NEAR, step, _NEAR + 4 * (step - _NEAR))


@jit
def _mark(mean):
    pattern = mean.to(tl.float32).to(tl.int32, bitcast=True)
    return tl.minimum((pattern + _HALF) >> _SHIFT, _TOP)


@jit
def _word(lower, upper):
    lower = tl.maximum(lower, upper - _REACH)
    marks = upper - lower
    step = tl.where(marks <= _NEAR, marks, _NEAR + ((marks - _NEAR + 2) >> 2))
    step = tl.minimum(step, _LAST)
    step -= (lower + _rise(step) > _TOP).to(tl.int32)
    return (lower << _STEP_BITS) | step


@jit
def _best_cut(start, inside, total, number, count):
    """How many of the largest make the upper group, and their sum."""
    cut, sum_of_cut = number * 0 + 1, total * 0.0
    first, most = total * 0.0, total * 0.0 - 1.0
    for j in range(1, count + 1):
        first += _load_wide(start, j - 1, inside)
        rest, others = total - first, tl.maximum(number - j, 1).to(tl.float64)
        captured = first * first / (number * 0 + j).to(tl.float64)
        captured += tl.where(j < number, rest * rest / others, 0.0)
        better = (j <= number) & (captured > most)
        cut, most = tl.where(better, j, cut), tl.where(better, captured, most)
        sum_of_cut = tl.where(better, first, sum_of_cut)
    return cut, sum_of_cut


@kernel
def _fit_rows(falling, levels, numbers, numel, count, BITS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * _ROWS + tl.arange(0, _ROWS)
    inside, start = row < numel, falling + row * count
    is_spoilt = tl.load(start, mask=inside, other=0) > _INF_BITS
    total, number = tl.zeros((_ROWS,), tl.float64), tl.zeros((_ROWS,), tl.int32)
    for j in range(count):
        value = _load_wide(start, j, inside & ~is_spoilt)
        total, number = total + value, number + (value > 0).to(tl.int32)
    if BITS > 1:
        cut, sum_of_cut = _best_cut(start, inside & ~is_spoilt, total, number, count)
    else:
        cut, sum_of_cut = number, total
    upper = sum_of_cut / tl.maximum(cut, 1).to(tl.float64)
    lower = (total - sum_of_cut) / tl.maximum(number - cut, 1).to(tl.float64)
    word = _word(_mark(tl.where(cut < number, lower, upper)), _mark(upper))
    word = tl.where(is_spoilt, _SPOILT, tl.where(number > 0, word, 0))
    tl.store(levels + 2 * row, (word & 255).to(tl.uint8), mask=inside)
    tl.store(levels + 2 * row + 1, (word >> 8).to(tl.uint8), mask=inside)
    tl.store(numbers + row, number.to(tl.int64), mask=inside)


@jit
def _load_words(levels, row, inside):
    low = tl.load(levels + 2 * row, mask=inside, other=0).to(tl.int32)
    return low | (tl.load(levels + 2 * row + 1, mask=inside, other=0).to(tl.int32) << 8)


@jit
def _levels_of(words):
    """The lower and the upper level that words stand for."""
    lower = words >> _STEP_BITS
    upper = lower + _rise(words & _LAST)
    return (lower << _SHIFT).to(tl.float32, bitcast=True), (upper << _SHIFT).to(
        tl.float32, bitcast=True
    )


@kernel
def _code_values(kept, levels, numbers, ends, codes, numel, count, BITS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * _VALUES + tl.arange(0, _VALUES)
    row = at // count
    column, inside = (at - row * count).to(tl.int32), at < numel
    value = tl.load(kept + at, mask=inside, other=0.0)
    number = tl.load(numbers + row, mask=inside, other=0)
    code = (value < 0).to(tl.int32)
    if BITS > 1:
        lower, upper = _levels_of(_load_words(levels, row, inside))
        middle = (lower.to(tl.float64) + upper.to(tl.float64)) * 0.5
        code += 2 * (tl.abs(value).to(tl.float64) > middle).to(tl.int32)
    start = tl.load(ends + row, mask=inside, other=0) - number
    tl.store(codes + start + column, code.to(tl.uint8), mask=column < number)


def fit_levels(kept: Tensor, levels: Tensor, codes: Tensor, *, bits: int) -> int:
    rows, count = kept.shape
    if not kept.numel():
        return 0
    magnitudes = kept.view(torch.int32) & 0x7FFFFFFF
    falling = magnitudes.sort(dim=1, descending=True).values
    numbers = magnitudes.new_empty(rows, dtype=torch.int64)
    programs = -(-rows // _ROWS.value)
    launch(_fit_rows, programs, falling, levels, numbers, rows, count, BITS=bits)
    ends, apart = numbers.cumsum(0), codes.new_empty(kept.numel())  # bits: integers
    launch(
        _code_values, -(-kept.numel() // _VALUES.value), kept, levels, numbers, ends, apart,
        kept.numel(), count, BITS=bits,
    )  # fmt: skip
    pack_tiles(apart, codes, ends[-1:], each=_EIGHTH.value, width=bits)
    return int(ends[-1])


@kernel
def _add_levels(
    bitmap, levels, codes, out, ends, numel, number, stop, block, weight,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    rows: tl.constexpr = SPAN // BLOCK
    first = tl.program_id(0).to(tl.int64) * SPAN
    bits = load_bits(bitmap, first, stop, rows, BLOCK)
    row, column = tl.arange(0, rows)[:, None] * BLOCK, tl.arange(0, BLOCK)[None, :]
    counts = tl.reshape(tl.cumsum(tl.reshape(bits, (SPAN,)), 0), (rows, BLOCK))  # bits: integers
    end = tl.load(ends + tl.program_id(0))
    at = end - tl.max(counts) + counts - 1
    inside, is_whole = (first + row + column) < numel, (end + 511) // 512 * 512 <= number
    chosen = (bits > 0) & inside & (at < number)
    place = (at & (_EIGHTH - 1)).to(tl.int32)
    code = load_codes(codes, at // _EIGHTH, place, chosen, _EIGHTH, number, is_whole, WIDTH)
    words = _load_words(levels, (first + row) // block, first + row < numel)
    lower, upper = _levels_of(words)
    value = tl.where(code >= 2, upper * weight, lower * weight)
    value = tl.where(code % 2 > 0, value * -1.0, value)
    spot, spoilt = out + first + row + column, (words == _SPOILT) & inside
    total = tl.load(spot, mask=chosen, other=0.0) + value
    tl.store(spot, tl.where(spoilt, float("nan"), total), mask=chosen | spoilt)


def add_levels(
    bitmap: Tensor,
    levels: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    block: int,
    bits: int,
    weight: float = 1.0,
) -> None:
    numel, number = out.numel(), 8 * codes.numel() // bits
    launch(
        _add_levels, -(-numel // SPAN.value), bitmap, levels, codes, out, bits_up_to(bitmap), numel,
        number, bitmap.numel(), block, single(weight), BLOCK=min(block, SPAN.value), WIDTH=bits,
    )  # fmt: skip
