"""Streams of prefix codes in Numba: words of groups, and what digits have beyond their largest.

A writer is (bytes written, bits that are left over, how many these are); a reader is the number of
the next bit. Both move eight bytes at a time, at any address, and three words between two moves:
these have 16 bits at most, signs included. Streams and digits are addresses, tables pointers.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.octets import (
    byte_pointer,
    load64,
    lowest_bit,
    prefetch,
    reaching,
    store64,
)
from gradwire.kernels.formats.huffman import CHUNK, STREAMS
from gradwire.kernels.formats.prefix import LIMIT

BEYOND = CHUNK // 4
"""Bytes that are enough for the groups of any stream: 512 of 14 bits, or 256 of 16."""
ROOM = 2 * CHUNK + BEYOND
"""Bytes that any stream fits, with 15 more bits for each code of a chunk."""
_MASK = np.uint64((1 << LIMIT) - 1)
_AT_ONCE = 3 * STREAMS
_LINE = 64
"""Bytes that come from memory at once."""


@jit
def _flush(address, at, pending, fill):  # type: ignore[no-untyped-def]
    """Store what is pending, full bytes or not, and keep what is no full byte."""
    store64(address + at, pending)
    return (
        at + np.int64(fill >> np.uint64(3)),
        pending >> (fill & np.uint64(56)),
        fill & np.uint64(7),
    )


@jit
def put_groups(index, first, number, words, address, ahead):  # type: ignore[no-untyped-def]
    """The words of groups `first`, `first` + 4, ... of `number`.

    Meanwhile, a quarter of what is at `ahead` comes nearer.
    """
    at, pending, fill, j = np.int64(0), np.uint64(0), np.uint64(0), first
    ahead += CHUNK * first
    while j + 2 * STREAMS < number:
        word = np.uint64(words[index[j]])
        three, bits = word >> np.uint64(8), word
        for i in (1, 2):  # the lowest bits of a sum of words are the sum of their lengths
            word = np.uint64(words[index[j + i * STREAMS]])
            three |= (word >> np.uint64(8)) << (bits & np.uint64(63))
            bits += word
        pending |= three << fill
        at, pending, fill = _flush(address, at, pending, fill + (bits & np.uint64(63)))
        prefetch(ahead)
        ahead, j = ahead + _LINE, j + _AT_ONCE
    while j < number:
        word = np.uint64(words[index[j]])
        pending |= (word >> np.uint64(8)) << fill
        at, pending, fill = _flush(address, at, pending, fill + (word & np.uint64(63)))
        j += STREAMS
    return at, pending, fill


@jit
def put_excess(digits, size, top, address, state):  # type: ignore[no-untyped-def]
    """Elias's gamma code of how much larger the digits are that reach `top`, plus 1."""
    (at, pending, fill), own = state, byte_pointer(digits)
    for first in range(0, size, 64):
        large = reaching(digits + first, top)
        while large:
            number = np.uint64(own[first + np.int64(lowest_bit(large))] - top) + np.uint64(1)
            low = np.uint64(0)
            while number >> (low + np.uint64(1)):
                low += np.uint64(1)
            rest = number ^ (np.uint64(1) << low)
            pending |= ((rest << np.uint64(1) | np.uint64(1)) << low) << fill
            fill += np.uint64(2) * low + np.uint64(1)
            at, pending, fill = _flush(address, at, pending, fill)
            large &= large - np.uint64(1)
    return at, pending, fill


@jit
def size_of(state):  # type: ignore[no-untyped-def]
    """Bytes of a stream; the last one, which may not be full, was stored with those before it."""
    at, _, fill = state
    return at + np.int64(fill > 0)


@jit
def _peek(address, place):  # type: ignore[no-untyped-def]
    """57 bits or more from a place on."""
    return load64(address + np.int64(place >> np.uint64(3))) >> (place & np.uint64(7))


@jit
def _look_up(groups, bits, used, digits, signs, j):  # type: ignore[no-untyped-def]
    """Group `j`: its digits, and the bits that follow the word, which begin with signs."""
    entry = np.uint64(groups[bits & _MASK])
    signs[j] = np.uint8(bits >> (entry >> np.uint64(8) & np.uint64(63)))
    digits[j] = np.uint8(entry >> np.uint64(16))
    return bits >> (entry & np.uint64(63)), used + entry


@jit
def take_groups(address, places, number, groups, digits, signs, ahead):  # type: ignore[no-untyped-def]
    """Groups from all four streams in turn, and where these are then.

    A look-up has to wait for the last one in its stream, but not for those in others. Meanwhile,
    what is at `ahead` comes nearer.
    """
    a, b, c, d = places
    for j in range(0, number - _AT_ONCE + 1, _AT_ONCE):
        bits_a, bits_b = _peek(address, a), _peek(address, b)
        bits_c, bits_d = _peek(address, c), _peek(address, d)
        used_a = used_b = used_c = used_d = np.uint64(0)  # in the lowest bits, as in `put_groups`
        for i in range(j, j + _AT_ONCE, STREAMS):
            bits_a, used_a = _look_up(groups, bits_a, used_a, digits, signs, i)
            bits_b, used_b = _look_up(groups, bits_b, used_b, digits, signs, i + 1)
            bits_c, used_c = _look_up(groups, bits_c, used_c, digits, signs, i + 2)
            bits_d, used_d = _look_up(groups, bits_d, used_d, digits, signs, i + 3)
        a, b = a + (used_a & np.uint64(63)), b + (used_b & np.uint64(63))
        c, d = c + (used_c & np.uint64(63)), d + (used_d & np.uint64(63))
        for _ in range(3):
            prefetch(ahead)
            ahead += _LINE
    for j in range(number - number % _AT_ONCE, number):
        _, used = _look_up(groups, _peek(address, a), np.uint64(0), digits, signs, j)
        a, b, c, d = b, c, d, a + (used & np.uint64(63))
    return _turned((a, b, c, d), number % STREAMS)


@jit
def _turned(places, by):  # type: ignore[no-untyped-def]
    """The streams in their order, if the first is now that of number `by`."""
    for _ in range((STREAMS - by) % STREAMS):
        a, b, c, d = places
        places = (b, c, d, a)
    return places


@jit
def take_excess(digits, size, top, address, place, end):  # type: ignore[no-untyped-def]
    """Add to the digits that reach `top`; where the stream is then, or beyond `end` if damaged."""
    own = byte_pointer(digits)
    for first in range(0, size, 64):
        large = reaching(digits + first, top)
        while large:
            bits = _peek(address, place)
            low = lowest_bit(bits | np.uint64(1 << 8))
            number = bits >> (low + np.uint64(1)) & ((np.uint64(1) << low) - np.uint64(1))
            total = np.uint64(top) + (number | np.uint64(1) << low) - np.uint64(1)
            place += np.uint64(2) * low + np.uint64(1)
            if low > np.uint64(7) or total > np.uint64(127) or place > end:
                return end + np.uint64(1)
            own[first + np.int64(lowest_bit(large))] = np.uint8(total)
            large &= large - np.uint64(1)
    return place
