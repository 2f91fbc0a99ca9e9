"""Which magnitudes of a block are the largest: exactly so many, of equal ones the first, in Triton.

Floats without their sign order like their bit patterns. A program has 4,096 of these in registers,
of one block or of several, and finds for all of them at once the threshold that just as many reach
as are wanted: down from the largest in steps that double, then by bisection. A pattern of -1 stands
for no value. How many are kept up to each place is then a prefix sum, which says where it goes.
"""

from __future__ import annotations

import triton.language as tl

from gradwire.kernels.gpu.compiler import jit
from gradwire.kernels.gpu.tiles import GROUP

NOT_FINITE = tl.constexpr(0x7F800000)
_FIRST_STEP, _LAST_STEP = tl.constexpr(1 << 21), tl.constexpr(1 << 29)
"""Patterns: a quarter of an octave, and one that need not double any more."""


@jit
def rows_of(BLOCK: tl.constexpr):
    """The blocks of a group."""
    return tl.arange(0, GROUP // BLOCK)[:, None]


@jit
def columns_of(BLOCK: tl.constexpr):
    return tl.arange(0, BLOCK)[None, :]


@jit
def values_left(numel, first):
    """How many of the values from `first` (int64) on are this program's."""
    return tl.minimum(numel - first, GROUP).to(tl.int32)


@jit
def threshold(patterns, sizes, wanted, tops):
    """(rows, 1): what `wanted` or more patterns of each row reach, and what is above it fewer do.

    `tops` are the largest patterns. Rows of which none or all are wanted take no time.
    """
    low = tl.zeros_like(tops)
    high = tl.where((wanted > 0) & (wanted < sizes), tops + 1, 1)
    step = _FIRST_STEP
    while tl.max(high - low) > 1:
        middle = high - tl.minimum((high - low) >> 1, step)
        number = reaching(patterns, middle)
        low = tl.where(number >= wanted, middle, low)
        high = tl.where(number == wanted, middle + 1, tl.where(number < wanted, middle, high))
        step = tl.minimum(step * 2, _LAST_STEP)
    return tl.where(wanted > 0, low, tops)


@jit
def reaching(patterns, least):
    """(rows, 1): how many are `least` or more."""
    return tl.sum((patterns >= least).to(tl.int32), 1, keep_dims=True)  # bits: integers


@jit
def ranked(patterns, least, ties):
    """(is it kept, how many are up to it): all above `least`, and as many `ties` that equal it."""
    equal = patterns == least
    both = (patterns > least).to(tl.int32) + (equal.to(tl.int32) << 16)
    counts = tl.cumsum(both, 1)  # bits: integers
    kept = (patterns > least) | (equal & (counts >> 16 <= ties))
    return kept, (counts & 0xFFFF) + tl.minimum(counts >> 16, ties)
