"""Exponents of floats in Numba: which prior and centre suit them, and codes of their ranks.

A sample of them is counted, and ranks that escape a level are picked out, or put back, one by one;
the other loops are vector loops.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.cpu.patterns import add_gain, code_of, copy, rank_of, wipe
from gradwire.kernels.cpu.picked import pick, put_back
from gradwire.kernels.formats.lossless import PRIORS, SAMPLE, gains

_FIRSTS = np.array([[(*p.first(k), p.top) for k in range(4)] for p in PRIORS], np.uint8)
_DEPTHS = np.array([prior.levels for prior in PRIORS])
_WIDTHS = np.array([prior.width for prior in PRIORS])
_GAINS = gains()[1].astype(np.int16)
CODES = 4
"""Rows of a chunk's octets that all codes of its ranks fit in."""


@jit
def choose_prior(exponents, number, counts, saved):  # type: ignore[no-untyped-def]
    """The prior and the centre that take the fewest bits of a sample."""
    step, low, high = max(1, number // SAMPLE), 255, 0
    wipe(counts, 0, len(counts))
    for i in range(min(-(-number // step), SAMPLE)):
        e = int(exponents[i * step])
        counts[256 + e] += 1
        low, high = min(low, e), max(high, e)
    copy(counts[256 + low :], high + 1 - low, counts[low:])
    span = high + 1 - low
    lanes = -(-span // 32) * 32
    for k in range(len(saved)):
        wipe(saved[k], 0, lanes)
    for k in range(len(_GAINS)):
        row, gain = saved[_GAINS[k, 0]], _GAINS[k, 2]
        part = counts[256 + low - _GAINS[k, 1] :]
        for i in range(lanes):
            row[i] = add_gain(row[i], gain, part[i])
    best, prior, centre = np.int16(-1), 0, 0
    for k in range(len(saved)):
        for i in range(span):
            if saved[k, i] > best:
                best, prior, centre = saved[k, i], k, low + i
    return prior, centre


@jit
def put_codes(ranks, number, prior, digits, escapes, out):  # type: ignore[no-untyped-def]
    """The codes of all levels; their bytes. What is left of the ranks is lost."""
    width, at = _WIDTHS[prior], 0
    escapes[:] = 0
    for level in range(_DEPTHS[prior]):
        low, high, above, top = _FIRSTS[prior, level]
        for i in range(number):
            digits[i] = code_of(ranks[i], low, high, above, top)
        wipe(digits, number, -(-number // 64) * 64)
        eighths = -(-number // 8)
        pack_tile(digits, 8 * eighths, width, out[at:])
        at += width * eighths
        number = pick(ranks, digits, number, top, ranks)
        escapes[level] = number
    copy(ranks, number, out[at:])
    return at + number


@jit
def take_ranks(body, prior, counts, digits, rooms):  # type: ignore[no-untyped-def]
    """The ranks, in which row of `rooms`; -1 if they are damaged."""
    width, depth, at = _WIDTHS[prior], _DEPTHS[prior], 0
    for level in range(depth):
        at += width * -(-counts[level] // 8)
    copy(body[at:], counts[depth], rooms[0])
    row = 0
    for back in range(depth):
        level = depth - 1 - back
        number, (low, high, above, top) = counts[level], _FIRSTS[prior, level]
        eighths = -(-number // 8)
        at -= width * eighths
        unpack_tile(body[at:], 8 * eighths, width, digits)
        wipe(digits, number, -(-number // 64) * 64)
        given, filled = rooms[row], rooms[1 - row]
        for i in range(number):
            filled[i] = rank_of(digits[i], low, high, above)
        if put_back(given, digits, number, top, filled) != counts[level + 1]:
            return -1
        row = 1 - row
    return row
