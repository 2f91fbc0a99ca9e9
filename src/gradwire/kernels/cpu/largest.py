"""Which magnitudes of a block are the largest: exactly so many, of equal ones the first, in Numba.

Floats without their sign order like their bit patterns, and how many patterns of a block reach a
threshold is a vector loop over what is in L1. Four thresholds cost hardly more than one, so each
pass leaves a fifth of where the right one can be; the first looks where it was in the last block.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import count_from, magnitude_bits

FIRST_GUESS = 0x3C000000
_NEAR, _FAR = 1 << 18, 1 << 22
"""How far from the last threshold the next one is looked for: 1/32 of an octave, and a half."""


@jit
def largest_of(patterns):  # type: ignore[no-untyped-def]
    """The largest magnitude."""
    top = np.int32(0)
    for i in range(len(patterns)):
        top = max(top, magnitude_bits(patterns[i]))
    return np.int64(top)


@jit
def _reaching(patterns, one, two, three, four):  # type: ignore[no-untyped-def]
    """How many magnitudes reach each of four thresholds."""
    a = b = c = d = np.int32(0)
    one, two, three, four = np.int32(one), np.int32(two), np.int32(three), np.int32(four)
    for i in range(len(patterns)):
        magnitude = magnitude_bits(patterns[i])
        a = count_from(a, magnitude, one)
        b = count_from(b, magnitude, two)
        c = count_from(c, magnitude, three)
        d = count_from(d, magnitude, four)
    return a, b, c, d


@jit
def find_threshold(patterns, wanted, top, guess):  # type: ignore[no-untyped-def]
    """(threshold, stop): kept are the magnitudes from `threshold` on, after `stop` only above it.

    `top` is the largest magnitude. Fewer than all are wanted, but one or more.
    """
    low, high = np.int64(0), np.int64(top) + 1  # more reach the one, fewer the other
    points = (guess - _FAR, guess - _NEAR, guess + _NEAR, guess + _FAR)
    while high - low > 1:
        at = (
            min(max(points[0], low), high),
            min(max(points[1], low), high),
            min(max(points[2], low), high),
            min(max(points[3], low), high),
        )
        counts = _reaching(patterns, at[0], at[1], at[2], at[3])
        for i in range(4):
            number = np.int64(counts[i])
            if number == wanted:
                return at[i], len(patterns)
            if number > wanted:
                low = max(low, at[i])
            else:
                high = min(high, at[i])
        width = high - low
        points = (
            low + width // 5,
            low + 2 * width // 5,
            low + 3 * width // 5,
            low + 4 * width // 5,
        )
    missing, stop = wanted - np.int64(_reaching(patterns, high, high, high, high)[0]), 0
    while missing:
        missing -= np.int64(magnitude_bits(patterns[stop])) == low
        stop += 1
    return low, stop


@jit
def flag(patterns, threshold, stop, flags):  # type: ignore[no-untyped-def]
    """A byte of 0 or 1 for each."""
    least, more = np.int32(threshold), np.int32(threshold + 1)
    for i in range(stop):
        flags[i] = np.uint8(magnitude_bits(patterns[i]) >= least)
    for i in range(stop, len(patterns)):
        flags[i] = np.uint8(magnitude_bits(patterns[i]) >= more)
