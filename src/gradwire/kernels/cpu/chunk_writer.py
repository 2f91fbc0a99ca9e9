"""Chunks of prefix codes, written in Numba.

Loops over codes are vector loops (`digits`); only those over groups are not (`streams`). A *desk*
is the address of what a chunk is written with, little enough for L1; its codes lie first.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.chunk_tables import look_up
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.digits import (
    choose,
    clip_codes,
    find_magnitudes,
    index_groups,
    split_codes,
)
from gradwire.kernels.cpu.octets import (
    byte_pointer,
    copy,
    half_pointer,
    int_pointer,
    octets_at,
    store32,
    store64,
    word_pointer,
)
from gradwire.kernels.cpu.pack import pack_tile
from gradwire.kernels.cpu.streams import ROOM, put_excess, put_groups, size_of
from gradwire.kernels.formats.chunks import FAR, SIZES, word_of_sizes
from gradwire.kernels.formats.huffman import CHUNK, NOTHING, PLAIN, STREAMS
from gradwire.kernels.formats.layout import TILE

_DIGITS, _FIELDS, _LOW_BITS, _INDEX, _TOTALS = (CHUNK * k for k in (1, 2, 3, 4, 5))
_STREAMS = _TOTALS + 4 * 256
DESK = _STREAMS + STREAMS * ROOM
"""Bytes of a desk."""
_word_of_sizes = jit(word_of_sizes)


@jit
def _write_streams(size, base, group, words, desk, ahead):  # type: ignore[no-untyped-def]
    """The sizes of the streams, which are left on the desk."""
    index, number, streams = half_pointer(desk + _INDEX), size // group, desk + _STREAMS
    index_groups(byte_pointer(desk + _FIELDS), size, group, index)
    a = put_groups(index, 0, number, words, streams, ahead)
    b = put_groups(index, 1, number, words, streams + ROOM, ahead)
    c = put_groups(index, 2, number, words, streams + 2 * ROOM, ahead)
    d = put_groups(index, 3, number, words, streams + 3 * ROOM, ahead)
    d = put_excess(desk + _DIGITS, size, np.uint8(base - 1), streams + 3 * ROOM, d)
    return size_of(a), size_of(b), size_of(c), size_of(d)


@jit
def _pack_low_bits(size, width, desk, body):  # type: ignore[no-untyped-def]
    for first in range(0, size, TILE):
        part = octets_at(desk + _LOW_BITS + first, TILE)
        packed = octets_at(body + first // 8 * width, TILE)
        pack_tile(part, min(TILE, size - first), width, packed)


@jit
def _write_body(size, zero, table, tables, desk, body, ahead):  # type: ignore[no-untyped-def]
    """The word of the sizes of its streams, and the size of the body; -1: bytes take no more."""
    low, base, group, words, _ = look_up(tables, table)
    codes, fields = byte_pointer(desk), byte_pointer(desk + _FIELDS)
    if low:
        digits, low_bits = byte_pointer(desk + _DIGITS), byte_pointer(desk + _LOW_BITS)
        split_codes(codes, size, zero, low, base, fields, digits, low_bits)
    else:
        clip_codes(codes, size, zero, base, fields)
    sizes = _write_streams(size, base, group, word_pointer(words), desk, ahead)
    a, b, c, d = sizes
    at, word = size // 8 * (low + 1) if low else 0, _word_of_sizes(a, b, c, d)
    far = SIZES if word & FAR else 0
    if at + a + b + c + d + far >= size:
        return word, -1
    if low:
        _pack_low_bits(size, low + 1, desk, body)
    for k in range(STREAMS):
        copy(desk + _STREAMS + k * ROOM, body + at, sizes[k])
        at += sizes[k]
    if far:
        store64(body + at, np.uint64(a | b << 16 | c << 32 | d << 48))
    return word, at + far


@jit
def write_chunk(size, zero, tables, desk, id_at, word_at, body, ahead):  # type: ignore[no-untyped-def]
    """Write the `size` codes on the desk to addresses: id, word, body; the size of the body.

    Meanwhile, what is at `ahead` comes nearer: the values of the next chunk.
    """
    codes, digits = byte_pointer(desk), byte_pointer(desk + _DIGITS)
    costs, totals = int_pointer(tables.costs), int_pointer(desk + _TOTALS)
    top = find_magnitudes(codes, size, zero, digits)
    table = choose(desk + _DIGITS, size, top, costs, tables.number, totals)
    word = nbytes = 0
    if table != NOTHING:
        word, nbytes = _write_body(size, zero, table, tables, desk, body, ahead)
        if nbytes < 0:
            table, word = PLAIN, 0
            nbytes = copy(desk, body, size)
    byte_pointer(id_at)[0] = np.uint8(table)
    store32(word_at, np.uint32(word))
    return nbytes
