"""Chunks of prefix codes, read in Numba.

Whatever the bytes are, nothing is read or written beyond the *desk*, where as in `chunk_writer` the
codes lie first: words are looked up in a copy of the body, which has room for the longest words
there are, and only then is it seen whether they ended where their stream does.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.chunk_tables import look_up
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.digits import add_low_bits, add_signs, unpack_groups
from gradwire.kernels.cpu.octets import byte_pointer, copy, octets_at, word_pointer
from gradwire.kernels.cpu.pack import unpack_tile
from gradwire.kernels.cpu.streams import BEYOND, take_excess, take_groups
from gradwire.kernels.formats.huffman import CHUNK, NOTHING, PLAIN
from gradwire.kernels.formats.layout import TILE

_DIGITS, _LOW_BITS, _PACKED, _BODY = CHUNK, 2 * CHUNK, 3 * CHUNK, 4 * CHUNK
_SIGNS = _PACKED + CHUNK // 2
DESK = _BODY + CHUNK + BEYOND
"""Bytes of a desk."""


@jit
def _ends(place, end):  # type: ignore[no-untyped-def]
    """Is the bit at `place` the first after byte `end`, or after bits of it that mean nothing?"""
    return np.int64((place + np.uint64(7)) >> np.uint64(3)) == end


@jit
def _read_digits(starts, size, base, group, groups, desk, ahead):  # type: ignore[no-untyped-def]
    """The digits of a chunk whose streams start at these bytes of the body, where the last ends.

    False if one of them ends elsewhere.
    """
    body, packed, signs = desk + _BODY, byte_pointer(desk + _PACKED), byte_pointer(desk + _SIGNS)
    a, b, c, d, end = starts
    places = np.uint64(8 * a), np.uint64(8 * b), np.uint64(8 * c), np.uint64(8 * d)
    in_a, in_b, in_c, in_d = take_groups(body, places, size // group, groups, packed, signs, ahead)
    unpack_groups(packed, size, group, byte_pointer(desk + _DIGITS))
    top = np.uint8(base - 1)
    in_d = take_excess(desk + _DIGITS, size, top, body, in_d, np.uint64(8 * end))
    return _ends(in_a, b) and _ends(in_b, c) and _ends(in_c, d) and _ends(in_d, end)


@jit
def _unpack_low_bits(size, width, desk):  # type: ignore[no-untyped-def]
    for first in range(0, size, TILE):
        packed = octets_at(desk + _BODY + first // 8 * width, TILE)
        part = octets_at(desk + _LOW_BITS + first, TILE)
        unpack_tile(packed, min(TILE, size - first), width, part)


@jit
def _read_body(table, sizes, size, zero, tables, desk, ahead):  # type: ignore[no-untyped-def]
    """A chunk with this table, the body of which is on the desk; False if it is damaged."""
    low, base, group, _, groups = look_up(tables, table)
    a = size // 8 * (low + 1) if low else 0
    b = a + sizes[0]
    c = b + sizes[1]
    d = c + sizes[2]
    starts = a, b, c, d, d + sizes[3]
    if not _read_digits(starts, size, base, group, word_pointer(groups), desk, ahead):
        return False
    codes, digits = byte_pointer(desk), byte_pointer(desk + _DIGITS)
    if low:
        _unpack_low_bits(size, low + 1, desk)
        return add_low_bits(digits, size, low, byte_pointer(desk + _LOW_BITS), zero, codes)
    add_signs(digits, size, group, byte_pointer(desk + _SIGNS), zero, codes)
    return True


@jit
def read_chunk(table, sizes, body, nbytes, size, zero, tables, desk, ahead):  # type: ignore[no-untyped-def]
    """Put the `size` codes of a chunk with a body of `nbytes` bytes on the desk; False: damaged.

    `sizes` are those of its streams; `nbytes` was found from them. Meanwhile, what is at `ahead`
    comes nearer: what the chunk is to be added to.
    """
    if table == NOTHING:
        codes = byte_pointer(desk)
        for i in range(size):
            codes[i] = zero
    elif table == PLAIN:
        copy(body, desk, size)
    else:
        copy(body, desk + _BODY, nbytes)
        return _read_body(np.int64(table), sizes, size, zero, tables, desk, ahead)
    return True
