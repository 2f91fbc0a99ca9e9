"""The codes of a chunk as digits, and which table is cheapest for it, in Numba.

All of these are vector loops. Arguments that hold more than one number are pointers.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.octets import (
    and8,
    clipped,
    folded,
    join16,
    magnitude,
    next_signs,
    or8,
    popcount,
    reaching,
    shl8,
    shr8,
    signed_digit,
    smaller,
    sub8,
    unfolded,
)
from gradwire.kernels.formats.huffman import CHUNK, NOTHING, THRESHOLDS

_LEAST = np.array(THRESHOLDS, np.uint8)


@jit
def find_magnitudes(codes, size, zero, magnitudes):  # type: ignore[no-untyped-def]
    """Those of a chunk of codes, and zeros after them; the largest."""
    for i in range(size):
        magnitudes[i] = magnitude(codes[i], zero)
    for i in range(size, CHUNK):
        magnitudes[i] = np.uint8(0)
    top = np.uint8(0)
    for i in range(CHUNK):
        top = max(top, magnitudes[i])
    return top


@jit
def _count(magnitudes, least):  # type: ignore[no-untyped-def]
    """How many of a chunk's, at an address, are at least that large."""
    total = np.uint64(0)
    for at in range(0, CHUNK, 64):
        total += popcount(reaching(magnitudes + at, least))
    return np.int32(total)


@jit
def choose(magnitudes, size, top, costs, number, totals):  # type: ignore[no-untyped-def]
    """The id of the cheapest of `number` tables for `size` codes, the largest of them `top`.

    Magnitudes are an address.
    """
    if top == 0:
        return NOTHING
    for table in range(number):
        totals[table] = costs[table] * np.int32(size)
    for j in range(len(_LEAST)):
        if _LEAST[j] <= top:
            count, row = _count(magnitudes, _LEAST[j]), (j + 1) * number
            for table in range(number):
                totals[table] += costs[row + table] * count
    least = totals[0]
    for table in range(1, number):
        least = min(least, totals[table])
    best = 0
    while totals[best] != least:
        best += 1
    return best


@jit
def clip_codes(codes, size, zero, base, fields):  # type: ignore[no-untyped-def]
    """Codes to fields of words, with their signs."""
    top = np.uint8(base - 1)
    for i in range(size):
        fields[i] = clipped(codes[i], zero, top)


@jit
def split_codes(codes, size, zero, low, base, fields, digits, low_bits):  # type: ignore[no-untyped-def]
    """Codes to fields of words, to digits that are not clipped, and to low bits with a sign."""
    shift, mask, top = np.uint8(low), np.uint8((1 << low) - 1), np.uint8(base - 1)
    for i in range(size):
        both = folded(codes[i], zero)
        sign = shr8(sub8(codes[i], zero), np.uint8(7))
        low_bits[i] = or8(and8(both, mask), shl8(sign, shift))
        digits[i] = shr8(both, shift)
        fields[i] = smaller(shr8(both, shift), top)


@jit
def index_groups(fields, size, group, index):  # type: ignore[no-untyped-def]
    """The fields of the codes of each group, one above the other."""
    stride = size // group
    if group == 4:
        mask = np.uint8(7)
        for j in range(stride):
            a, b = and8(fields[j], mask), and8(fields[stride + j], mask)
            c, d = and8(fields[2 * stride + j], mask), and8(fields[3 * stride + j], mask)
            both = join16(join16(np.uint16(0), a, np.uint16(0)), b, np.uint16(3))
            index[j] = join16(join16(both, c, np.uint16(6)), d, np.uint16(9))
    else:
        mask = np.uint8(31)
        for j in range(stride):
            a, b = and8(fields[j], mask), and8(fields[stride + j], mask)
            index[j] = join16(join16(np.uint16(0), a, np.uint16(0)), b, np.uint16(5))


@jit
def unpack_groups(packed, size, group, digits):  # type: ignore[no-untyped-def]
    """The digits of all groups; zeros follow, up to a multiple of 64."""
    stride, width = size // group, 8 // group
    mask = np.uint8((1 << width) - 1)
    for place in range(group):
        start, shift = place * stride, np.uint8(width * place)
        for j in range(stride):
            digits[start + j] = and8(shr8(packed[j], shift), mask)
    for i in range(size, -(-size // 64) * 64):
        digits[i] = np.uint8(0)


@jit
def add_signs(digits, size, group, signs, zero, codes):  # type: ignore[no-untyped-def]
    """Codes from digits and from the signs of those that are not zero."""
    stride = size // group
    for place in range(group):
        start = place * stride
        for j in range(stride):
            digit = digits[start + j]
            codes[start + j] = signed_digit(digit, signs[j], zero)
            signs[j] = next_signs(digit, signs[j])


@jit
def add_low_bits(digits, size, low, low_bits, zero, codes):  # type: ignore[no-untyped-def]
    """Codes from digits and from low bits; False if one is too large."""
    shift, mask, top = np.uint8(low), np.uint8((1 << low) - 1), np.uint8(0)
    for i in range(size):
        top = max(top, digits[i])
        both = or8(shl8(digits[i], shift), and8(low_bits[i], mask))
        codes[i] = unfolded(both, shr8(low_bits[i], shift), zero)
    return top <= 127 >> low
