"""Values as signs and levels in Numba. NumPy sorts, by vector instructions where there are any."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import as_bits, as_float
from gradwire.kernels.cpu.octets import lowest_bit
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.formats.layout import TILE
from gradwire.kernels.formats.levels import (
    LAST_STEP,
    NEAR,
    REACH,
    SHIFT,
    SPOILT,
    STEP_BITS,
    TOP,
    rise,
)

_BODY = np.int32(0x7FFFFFFF)
_INF_BITS = 0x7F800000
_rise = jit(rise)


@jit
def _mark(mean):  # type: ignore[no-untyped-def]
    return min((np.int64(as_bits(np.float32(mean))) + (1 << (SHIFT - 1))) >> SHIFT, TOP)


@jit
def _best_cut(sums):  # type: ignore[no-untyped-def]
    """How many of the largest make the upper group, from the sums of the first 1, 2, ..."""
    cut, most, total = 1, -1.0, sums[-1]
    for j in range(1, len(sums) + 1):
        rest = total - sums[j - 1]
        captured = sums[j - 1] * sums[j - 1] / j
        if j < len(sums):
            captured += rest * rest / (len(sums) - j)
        if captured > most:
            cut, most = j, captured
    return cut


@jit
def _fit(rising, bits, room):  # type: ignore[no-untyped-def]
    """The word of some magnitudes, of which there is one at least."""
    sums, total = room[: len(rising)], 0.0
    for i in range(len(rising)):
        total += np.float64(as_float(rising[len(rising) - 1 - i]))
        sums[i] = total
    cut = _best_cut(sums) if bits > 1 else len(sums)
    upper = _mark(sums[cut - 1] / cut)
    lower = _mark((total - sums[cut - 1]) / (len(sums) - cut)) if cut < len(sums) else upper
    lower = max(lower, upper - REACH)
    marks = upper - lower
    step = marks if marks <= NEAR else min(NEAR + ((marks - NEAR + 2) >> 2), LAST_STEP)
    step -= lower + _rise(step) > TOP
    return lower << STEP_BITS | step


@jit
def _levels(word):  # type: ignore[no-untyped-def]
    """The lower and the upper level that a word stands for."""
    lower = word >> STEP_BITS
    upper = lower + _rise(word & LAST_STEP)
    return as_float(np.int32(lower << SHIFT)), as_float(np.int32(upper << SHIFT))


@jit
def _fit_levels(kept, rising, levels, packed, bits):  # type: ignore[no-untyped-def]
    codes, sums = np.zeros(TILE, np.uint8), np.empty(kept.shape[1], np.float64)
    done, most = 0, kept.shape[1]
    for row in range(len(kept)):
        zeros = 0
        while zeros < most and rising[row, zeros] == 0:
            zeros += 1
        size, word = most - zeros, np.int64(0)
        if size and rising[row, most - 1] > _INF_BITS:
            size, word = 0, np.int64(SPOILT)
        elif size:
            word = _fit(rising[row, zeros:], bits, sums)
        levels[2 * row], levels[2 * row + 1] = np.uint8(word & 255), np.uint8(word >> 8)
        lower, upper = _levels(word)
        middle = (np.float64(lower) + np.float64(upper)) * 0.5
        for i in range(size):
            is_upper = bits > 1 and np.float64(as_float(np.int32(kept[row, i] & _BODY))) > middle
            codes[done % TILE] = np.uint8((kept[row, i] < 0) + 2 * is_upper)
            done += 1
            if done % TILE == 0:
                pack_tile(codes, TILE, bits, packed[(done - TILE) // 8 * bits :])
    rest = done % TILE
    codes[rest:] = 0
    pack_tile(codes, -(-rest // 8) * 8, bits, packed[(done - rest) // 8 * bits :])
    return done


@jit
def _add_levels(words, levels, packed, out, block, bits, weight):  # type: ignore[no-untyped-def]
    codes, signed = np.empty(TILE, np.uint8), np.empty(4, np.float32)
    total, done, known = 8 * len(packed) // bits, 0, np.int64(-1)
    for w in range(len(words)):
        word = words[w]
        while word:
            place = w * 64 + np.int64(lowest_bit(word))
            if place // block != known:
                known = place // block
                own = np.int64(levels[2 * known]) | np.int64(levels[2 * known + 1]) << 8
                lower, upper = _levels(own)
                signed[0], signed[2] = lower * weight, upper * weight
                signed[1], signed[3] = -signed[0], -signed[2]
            if done % TILE == 0:
                unpack_tile(packed[done // 8 * bits :], min(TILE, total - done), bits, codes)
            out[place] += signed[codes[done % TILE]]
            done += 1
            word &= word - np.uint64(1)
    for b in range(len(levels) // 2):
        if np.int64(levels[2 * b]) | np.int64(levels[2 * b + 1]) << 8 == SPOILT:
            out[b * block : (b + 1) * block] = np.float32(np.nan)


def fit_levels(kept: Tensor, levels: Tensor, codes: Tensor, *, bits: int) -> int:
    patterns = kept.numpy().view(np.int32)
    rising = np.sort(patterns & _BODY, axis=1)
    return int(_fit_levels(patterns, rising, levels.numpy(), codes.numpy(), bits))


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
    words, packed = bitmap.numpy().view(np.uint64), codes.numpy()
    _add_levels(words, levels.numpy(), packed, out.numpy(), block, bits, np.float32(weight))
