"""Streams of prefix codes in Numba: words of groups, and what digits have beyond their largest.

A writer is (bytes written, bits that are left over, how many these are), a reader (bytes read, bits
that are not used yet, how many). Both move eight bytes at a time, at any address.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import load64, lowest_bit, reaching, store64
from gradwire.kernels.formats.huffman import CHUNK
from gradwire.kernels.formats.layout import TILE
from gradwire.kernels.formats.prefix import LIMIT

ROOM = 2 * CHUNK + 64
"""Bytes that any stream of a chunk fits, and as much as its reader may look beyond."""
_MASK = np.uint64((1 << LIMIT) - 1)


@jit
def put_groups(index, words, address, at, pending, fill):  # type: ignore[no-untyped-def]
    """Words of groups; bytes are stored eight at a time, whether they are full or not."""
    size = len(index)
    for j in range(0, size - 2, 3):
        for i in range(3):
            word = np.uint64(words[index[j + i]])
            pending |= (word >> np.uint64(8)) << fill
            fill += word & np.uint64(63)
        store64(address + at, pending)
        at += np.int64(fill >> np.uint64(3))
        pending >>= fill & np.uint64(56)
        fill &= np.uint64(7)
    for j in range(size - size % 3, size):
        word = np.uint64(words[index[j]])
        pending |= (word >> np.uint64(8)) << fill
        fill += word & np.uint64(63)
    store64(address + at, pending)
    at += np.int64(fill >> np.uint64(3))
    return at, pending >> (fill & np.uint64(56)), fill & np.uint64(7)


@jit
def put_excess(digits, size, top, address, at, pending, fill):  # type: ignore[no-untyped-def]
    """Elias's gamma code of how much larger the digits are that reach `top`, plus 1."""
    for first in range(0, size, 64):
        large = reaching(digits.ctypes.data + first, top)
        while large:
            number = np.uint64(digits[first + np.int64(lowest_bit(large))] - top) + np.uint64(1)
            low = np.uint64(0)
            while number >> (low + np.uint64(1)):
                low += np.uint64(1)
            rest = number ^ (np.uint64(1) << low)
            pending |= ((rest << np.uint64(1) | np.uint64(1)) << low) << fill
            fill += np.uint64(2) * low + np.uint64(1)
            store64(address + at, pending)
            at += np.int64(fill >> np.uint64(3))
            pending >>= fill & np.uint64(56)
            fill &= np.uint64(7)
            large &= large - np.uint64(1)
    return at, pending, fill


@jit
def close(streams, start, state):  # type: ignore[no-untyped-def]
    """Write the last byte of a stream if it is begun; its size."""
    at, pending, fill = state
    if fill:
        streams[start + at] = np.uint8(pending & np.uint64(255))
        at += 1
    return at


@jit
def _refill(address, limit, at, bits, fill):  # type: ignore[no-untyped-def]
    """At least 56 bits; what is read beyond the end is zeros, and `at` stops soon after it."""
    bits |= load64(address + at) << fill
    at = min(at + np.int64((np.uint64(63) - fill) >> np.uint64(3)), limit)
    return at, bits, fill | np.uint64(56)


@jit
def take_both(room, groups, number, sizes, state_a, state_b, address):  # type: ignore[no-untyped-def]
    """Groups of two tiles: their digits, and the bits that follow the word, which hold signs."""
    digits_a, signs_a = room[: TILE // 2], room[TILE // 2 : TILE]
    digits_b, signs_b = room[TILE : TILE + TILE // 2], room[TILE + TILE // 2 :]
    (at_a, bits_a, fill_a), (at_b, bits_b, fill_b) = state_a, state_b
    for j in range(0, number, 3):
        at_a, bits_a, fill_a = _refill(address, sizes[0] + 8, at_a, bits_a, fill_a)
        at_b, bits_b, fill_b = _refill(address + ROOM, sizes[1] + 8, at_b, bits_b, fill_b)
        for i in range(3):
            one, two = np.uint64(groups[bits_a & _MASK]), np.uint64(groups[bits_b & _MASK])
            signs_a[j + i] = bits_a >> (one >> np.uint64(8) & np.uint64(63))
            signs_b[j + i] = bits_b >> (two >> np.uint64(8) & np.uint64(63))
            digits_a[j + i], digits_b[j + i] = one >> np.uint64(16), two >> np.uint64(16)
            bits_a, bits_b = bits_a >> (one & np.uint64(63)), bits_b >> (two & np.uint64(63))
            fill_a, fill_b = fill_a - (one & np.uint64(63)), fill_b - (two & np.uint64(63))
    return (at_a, bits_a, fill_a), (at_b, bits_b, fill_b)


@jit
def take(room, place, groups, start, stop, limit, address, at, bits, fill):  # type: ignore[no-untyped-def]
    """The same for the rest of one tile."""
    for j in range(start, stop):
        at, bits, fill = _refill(address, limit, at, bits, fill)
        entry = np.uint64(groups[bits & _MASK])
        room[place + TILE // 2 + j] = bits >> (entry >> np.uint64(8) & np.uint64(63))
        room[place + j] = entry >> np.uint64(16)
        bits, fill = bits >> (entry & np.uint64(63)), fill - (entry & np.uint64(63))
    return at, bits, fill


@jit
def take_excess(digits, size, top, limit, address, at, bits, fill):  # type: ignore[no-untyped-def]
    """Add to the digits that reach `top`; False if one is too large."""
    for first in range(0, size, 64):
        large = reaching(digits.ctypes.data + first, top)
        while large:
            at, bits, fill = _refill(address, limit, at, bits, fill)
            low = lowest_bit(bits | np.uint64(1 << 8))
            number = bits >> (low + np.uint64(1)) & ((np.uint64(1) << low) - np.uint64(1))
            total = np.uint64(top) + (number | np.uint64(1) << low) - np.uint64(1)
            if low > np.uint64(7) or total > np.uint64(127):
                return False, (at, bits, fill)
            digits[first + np.int64(lowest_bit(large))] = np.uint8(total)
            used = np.uint64(2) * low + np.uint64(1)
            bits, fill = bits >> used, fill - used
            large &= large - np.uint64(1)
    return True, (at, bits, fill)


@jit
def ends(state, size):  # type: ignore[no-untyped-def]
    """Is the last byte of a stream the last that was needed?"""
    at, _, fill = state
    return (8 * at - np.int64(fill) + 7) >> 3 == size
