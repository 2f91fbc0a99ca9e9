"""Packing of codes in Triton, as `formats/layout.py` has it.

Packed codes of `width` bits are `width` planes of an eighth as many bytes as there are values. A
digit of w bits has w of them: byte k of plane j of it holds place k of the eighths j, j + w, ...

The fields of a word (`formats/fields.py`) lie W values apart, which is no number of eighths: they
are read eighth by eighth, and written word by word, by `fields.py`.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import layout
from gradwire.kernels.gpu.compiler import jit, kernel, launch, static
from gradwire.kernels.gpu.tiles import EIGHTH, ROWS, lanes, quotient, rows, skip

_OCTETS = tl.constexpr(512)
_digits = static(layout.digits)


@static
def digits(width: int) -> int:
    """How many digits a code has."""
    return len(_digits(width))


@static
def bits_of(width: int, digit: int) -> int:
    """The bits of a digit."""
    return _digits(width)[digit][0]  # type: ignore[no-any-return]


@static
def place_of(width: int, digit: int) -> int:
    """How far a digit is from the lowest bit."""
    return _digits(width)[digit][1]  # type: ignore[no-any-return]


@jit
def _octets(stride, plane: tl.constexpr, WIDTH: tl.constexpr):
    """Where the bytes of a plane are."""
    return rows() * (EIGHTH * WIDTH) + plane * stride + lanes()


@jit
def store_packed(codes, values, stride, left, WIDTH: tl.constexpr):
    """Write eighths of codes below 2^WIDTH."""
    for digit in tl.static_range(digits(WIDTH)):
        for j in tl.static_range(bits_of(WIDTH, digit)):
            octet = _octet(values, j, bits_of(WIDTH, digit), place_of(WIDTH, digit)).to(tl.uint8)
            at = _octets(stride, place_of(WIDTH, digit) + j, WIDTH)
            if left is None:
                tl.store(codes + at, octet)
            else:
                tl.store(codes + at, octet, mask=lanes() < stride)


@jit
def _octet(values, j: tl.constexpr, bits: tl.constexpr, low: tl.constexpr):
    """Plane `j` of a digit, one byte for each lane."""
    octet = (values[j] >> low) & ((1 << bits) - 1)
    for q in tl.static_range(1, 8 // bits):
        octet |= ((values[q * bits + j] >> low) & ((1 << bits) - 1)) << (q * bits)
    return octet


@kernel
def _pack_tiles(codes, out, number, each, WIDTH: tl.constexpr):
    if number.dtype.is_ptr():
        number = tl.load(number)
    at = tl.program_id(0) * _OCTETS + tl.arange(0, _OCTETS)
    tile, k = (at // each).to(tl.int64), at % each
    left = tl.maximum(number - tile * 8 * each, 0)
    stride = tl.minimum((left + 7) // 8, each)
    values = ()
    for s in tl.static_range(8):
        inside = (k < stride) & (s * stride + k < left)
        start = codes + tile * 8 * each + s * stride
        values += (tl.load(start + k, mask=inside, other=0).to(tl.int32),)
    for digit in tl.static_range(digits(WIDTH)):
        for j in tl.static_range(bits_of(WIDTH, digit)):
            octet = _octet(values, j, bits_of(WIDTH, digit), place_of(WIDTH, digit)).to(tl.uint8)
            plane = tile * each * WIDTH + (place_of(WIDTH, digit) + j) * stride
            tl.store(out + plane + k, octet, mask=k < stride)


def pack_tiles(codes: Tensor, out: Tensor, number: int | Tensor, *, each: int, width: int) -> None:
    """Pack tiles of 8 `each` codes; the first `number` are, which a tensor may say."""
    octets = -(-codes.numel() // (8 * each)) * each
    programs = -(-octets // _OCTETS.value)
    launch(_pack_tiles, programs, codes, out, number, each, WIDTH=width)


@jit
def load_packed(codes, stride, left, WIDTH: tl.constexpr):
    """Eighths of codes (int32), zeros where there are none."""
    planes = ()
    for plane in tl.static_range(WIDTH):
        at = _octets(stride, plane, WIDTH)
        if left is None:
            planes += (tl.load(codes + at).to(tl.int32),)
        else:
            planes += (tl.load(codes + at, mask=lanes() < stride, other=0).to(tl.int32),)
    values = ()
    for s in tl.static_range(8):
        code = _digit(planes, s, WIDTH, 0)
        for digit in tl.static_range(1, digits(WIDTH)):
            code |= _digit(planes, s, WIDTH, digit) << place_of(WIDTH, digit)
        values += (code,)
    return values


@jit
def _digit(planes, s: tl.constexpr, WIDTH: tl.constexpr, digit: tl.constexpr):
    """A digit of the values of eighth `s`."""
    bits: tl.constexpr = bits_of(WIDTH, digit)
    octet = planes[place_of(WIDTH, digit) + s % bits]
    return (octet >> (s // bits * bits)) & ((1 << bits) - 1)


@static
def per_word(width: int) -> int:
    """The fields of a word."""
    return 32 // width


@static
def words_of(width: int) -> int:
    """The words of a whole tile."""
    return -(-512 // (32 // width))


@static
def padded(count: int) -> int:
    """Up to a power of two."""
    return 1 << (count - 1).bit_length()


@jit
def load_fields(words, stride, left, WIDTH: tl.constexpr):
    """Eighths of fields (int32); a word is read once for each of its fields, from the cache."""
    words = skip(words, ROWS * words_of(WIDTH))
    fields = ()
    for s in tl.static_range(8):
        value = rows() * 0 + s * stride + lanes()
        if left is None:
            count = words_of(WIDTH)
            number, place, inside = value // count, value % count, value >= 0
        else:
            whole = (8 * stride + per_word(WIDTH) - 1) // per_word(WIDTH)
            count = tl.maximum(whole, 1)
            number, inside = quotient(value, count), lanes() < stride
            place = value - number * count
        at = rows() * words_of(WIDTH) + place
        word = tl.load(words + at, mask=inside, other=0).to(tl.uint32, bitcast=True)
        low = tl.minimum(number * WIDTH, 31)  # more only where there is no value
        field = word >> low.to(tl.uint32)
        fields += ((field & ((1 << WIDTH) - 1)).to(tl.int32, bitcast=True),)
    return fields
