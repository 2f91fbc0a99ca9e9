"""The largest values of every block in Numba: one pass over memory.

Floats without their sign order like their bit patterns, and how many patterns of a block reach a
threshold is a vector loop over what is in L1. So the threshold that just as many reach as are
wanted is found by bisection, beginning where it was in the block before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from torch import Tensor

from gradwire.kernels.cpu.calls import array
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import count_from, magnitude_bits
from gradwire.kernels.cpu.octets import lowest_bit
from gradwire.kernels.cpu.sparse import gather_flags
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import widen

_INF_BITS = 0x7F800000
_NAN_BITS = np.int32(0x7FC00000)
_FIRST_GUESS = 0x3C000000
_WIDTH = 1 << 19
"""How far from the last threshold the next one is sought at first: a sixteenth of an octave."""


def load_block(x: Any, start: int, stop: int, room: Any) -> Any:
    """x[start:stop] as patterns of float32: in place if that is what it is, else in `room`."""


@overload(load_block)
def _load_block_for(x, start, stop, room):  # type: ignore[no-untyped-def]
    if x.dtype == types.float32:

        def load(x, start, stop, room):  # type: ignore[no-untyped-def]
            return x[start:stop].view(np.int32)

    else:

        def load(x, start, stop, room):  # type: ignore[no-untyped-def]
            widen(x, start, stop, room)
            return room[: stop - start].view(np.int32)

    return load


@jit
def _survey(patterns):  # type: ignore[no-untyped-def]
    """The largest magnitude, and how many are not zero."""
    top, number = np.int32(0), np.int32(0)
    for i in range(len(patterns)):
        magnitude = magnitude_bits(patterns[i])
        top = max(top, magnitude)
        number = count_from(number, magnitude, np.int32(1))
    return top, np.int64(number)


@jit
def _reaching(patterns, least):  # type: ignore[no-untyped-def]
    """How many magnitudes are `least` or more."""
    number, bound = np.int32(0), np.int32(least)
    for i in range(len(patterns)):
        number = count_from(number, magnitude_bits(patterns[i]), bound)
    return np.int64(number)


@jit
def _bracket(patterns, wanted, guess):  # type: ignore[no-untyped-def]
    """(low, high): more than `wanted` reach the one, fewer the other; equal if just as many do."""
    width, number = np.int64(_WIDTH), _reaching(patterns, guess)
    low = high = np.int64(guess)
    if number > wanted:
        while number > wanted:
            low, high = high, min(high + width, np.int64(_INF_BITS))
            width *= 2
            number = _reaching(patterns, high)
        return (low, high) if number < wanted else (high, high)
    while number < wanted:
        low, high = max(low - width, np.int64(1)), low
        width *= 2
        number = _reaching(patterns, low)
    return (low, high) if number > wanted else (low, low)


@jit
def _threshold(patterns, wanted, guess):  # type: ignore[no-untyped-def]
    """(threshold, stop) as in `find_threshold`; more than `wanted` are not zero."""
    low, high = _bracket(patterns, wanted, guess)
    while high - low > 1:
        middle = low + (high - low) // 2
        number = _reaching(patterns, middle)
        if number == wanted:
            low = high = middle
        elif number > wanted:
            low = middle
        else:
            high = middle
    if low == high:
        return low, len(patterns)
    missing, stop = wanted - _reaching(patterns, high), 0
    while missing:
        missing -= np.int64(magnitude_bits(patterns[stop])) == low
        stop += 1
    return low, stop


@jit
def _flag(patterns, threshold, stop, flags):  # type: ignore[no-untyped-def]
    least, more = np.int32(threshold), np.int32(threshold + 1)
    for i in range(stop):
        flags[i] = np.uint8(magnitude_bits(patterns[i]) >= least)
    for i in range(stop, len(patterns)):
        flags[i] = np.uint8(magnitude_bits(patterns[i]) >= more)


@jit
def _collect(patterns, words, kept):  # type: ignore[no-untyped-def]
    """The values that a bitmap names, and zeros after them."""
    size = 0
    for w in range(len(words)):
        word = words[w]
        while word:
            kept[size] = patterns[w * 64 + np.int64(lowest_bit(word))]
            size += 1
            word &= word - np.uint64(1)
    kept[size:] = 0


@jit
def _largest_of_blocks(x, bitmap, kept, block, count):  # type: ignore[no-untyped-def]
    room, flags = np.empty(block, np.float32), np.empty(block, np.uint8)
    octets, own = flags.view(np.uint64), np.zeros(-(-block // 64) * 8, np.uint8)
    words, guess = own.view(np.uint64), np.int64(_FIRST_GUESS)
    for start in range(0, len(x), block):
        size = min(block, len(x) - start)
        patterns = load_block(x, start, start + size, room)
        row = kept[start // block * count : (start // block + 1) * count]
        wanted = -(-size * count // block)
        top, number = _survey(patterns)
        flags[:] = 0
        if number and top < _INF_BITS:
            threshold, stop = np.int64(1), size
            if number > wanted:
                threshold, stop = _threshold(patterns, wanted, guess)
                guess = threshold
            _flag(patterns, threshold, stop, flags)
        gather_flags(octets, own[: block // 8])
        _collect(patterns, words, row)
        if top >= _INF_BITS:
            row[:] = _NAN_BITS
        target = bitmap[start // 8 : (start + block) // 8]
        for i in range(min(len(target), len(own))):
            target[i] = own[i]


def largest_of_blocks(x: Tensor, bitmap: Tensor, kept: Tensor, *, block: int) -> None:
    values, octets, count = array(x), bitmap.numpy(), kept.shape[1]
    rows = kept.view(-1).numpy().view(np.int32)
    octets[x.numel() // block * block // 8 :] = 0

    def run(start: int, stop: int) -> None:
        part, row = octets[start // 8 :], rows[start // block * count :]
        _largest_of_blocks(values[start:stop], part, row, block, count)

    over_threads(x.numel(), block, run)
