"""The codes of a tile as digits, and which table is cheapest for a chunk, in Numba.

All of these are vector loops.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import (
    add8,
    and8,
    clipped,
    folded,
    join16,
    magnitude,
    next_signs,
    or8,
    reaches,
    shl8,
    shr8,
    signed_digit,
    smaller,
    sub8,
    unfolded,
)
from gradwire.kernels.formats.huffman import CHUNK, NOTHING, THRESHOLDS

_LEAST = np.array(THRESHOLDS, np.uint8)
LANES = 64


@jit
def _count(sizes, least, lanes):  # type: ignore[no-untyped-def]
    """How many of a chunk's magnitudes are at least that large."""
    for i in range(LANES):
        lanes[i] = 0
    for at in range(0, CHUNK, 4 * LANES):
        for i in range(at, at + LANES):
            two = add8(reaches(sizes[i], least), reaches(sizes[i + 64], least))
            more = add8(reaches(sizes[i + 128], least), reaches(sizes[i + 192], least))
            lanes[i - at] = add8(lanes[i - at], add8(two, more))
    total = np.int64(0)
    for i in range(LANES):
        total += np.int64(lanes[i])
    return total


@jit
def choose(sizes, number, costs, room, lanes):  # type: ignore[no-untyped-def]
    """The id of the cheapest table for `number` codes of these magnitudes."""
    top = np.uint8(0)
    for i in range(CHUNK):
        top = max(top, sizes[i])
    if top == 0:
        return NOTHING
    for table in range(len(room)):
        room[table] = costs[0, table] * np.int32(number)
    for j in range(len(_LEAST)):
        if _LEAST[j] <= top:
            count = np.int32(_count(sizes, _LEAST[j], lanes))
            for table in range(len(room)):
                room[table] += costs[j + 1, table] * count
    best = 0
    for table in range(1, len(room)):
        if room[table] < room[best]:
            best = table
    return best


@jit
def split_codes(codes, size, zero, low, base, fields, digits, low_bits):  # type: ignore[no-untyped-def]
    """A tile of codes to fields of words, to digits that are not clipped, and to low bits."""
    shift, mask, top = np.uint8(low), np.uint8((1 << low) - 1), np.uint8(base - 1)
    if low == 0:
        for i in range(size):
            digits[i] = magnitude(codes[i], zero)
            fields[i] = clipped(codes[i], zero, top)
    else:
        for i in range(size):
            both = folded(codes[i], zero)
            sign = shr8(sub8(codes[i], zero), np.uint8(7))
            low_bits[i] = or8(and8(both, mask), shl8(sign, shift))
            digits[i] = shr8(both, shift)
            fields[i] = smaller(digits[i], top)
    for i in range(size, -(-size // 64) * 64):
        digits[i] = 0


@jit
def index_groups(fields, size, group, index):  # type: ignore[no-untyped-def]
    """The fields of the codes of each group, one above the other."""
    stride, width = size // group, np.uint16(3 if group == 4 else 5)
    mask = np.uint8((1 << width) - 1)
    for j in range(stride):
        index[j] = np.uint16(and8(fields[j], mask))
    for place in range(1, group):
        part, shift = fields[place * stride : (place + 1) * stride], np.uint16(width * place)
        for j in range(stride):
            index[j] = join16(index[j], and8(part[j], mask), shift)


@jit
def unpack_groups(packed, size, group, digits):  # type: ignore[no-untyped-def]
    """The digits of all groups of a tile."""
    stride, width = size // group, 8 // group
    mask = np.uint8((1 << width) - 1)
    for place in range(group):
        part, shift = digits[place * stride : (place + 1) * stride], np.uint8(width * place)
        for j in range(stride):
            part[j] = and8(shr8(packed[j], shift), mask)
    for i in range(size, -(-size // 64) * 64):
        digits[i] = 0


@jit
def add_signs(digits, size, group, signs, zero, codes):  # type: ignore[no-untyped-def]
    """Codes from digits and from the signs of those that are not zero."""
    stride = size // group
    for place in range(group):
        part = digits[place * stride : (place + 1) * stride]
        out = codes[place * stride : (place + 1) * stride]
        for j in range(stride):
            out[j] = signed_digit(part[j], signs[j], zero)
            signs[j] = next_signs(part[j], signs[j])


@jit
def add_low_bits(digits, size, low, low_bits, zero, codes):  # type: ignore[no-untyped-def]
    """Codes from digits and from low bits; False if one is too large."""
    shift, mask, top = np.uint8(low), np.uint8((1 << low) - 1), np.uint8(0)
    for i in range(size):
        top = max(top, digits[i])
        both = or8(shl8(digits[i], shift), and8(low_bits[i], mask))
        codes[i] = unfolded(both, shr8(low_bits[i], shift), zero)
    return top <= 127 >> low
