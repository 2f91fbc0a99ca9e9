"""What is kept of rows of coefficients in Triton: found, rounded, and added up again.

A program has some blocks as rows, (rows, SIZE); `first` is the first coefficient of these, `limit`
where the coefficients end that a launch is for, `stop` the same for bytes of bitmaps. Codes are
written to memory one by one where they stand in their order, and packed by another launch: only
then are those that share a byte known to be there. They are read from where they are packed.
"""

from __future__ import annotations

import triton.language as tl

from gradwire.kernels.formats import spectra
from gradwire.kernels.gpu.compiler import jit, static
from gradwire.kernels.gpu.largest import NOT_FINITE, ranked, reaching, threshold
from gradwire.kernels.gpu.pack import bits_of, digits, place_of

_STRIP = tl.constexpr(spectra.STRIP)
_MAX_FINITE, _OCTAVE = tl.constexpr(0x7F7FFFFF), tl.constexpr(0x00800000)


@static
def positive(width: int) -> int:
    """How many positive codes there are."""
    return (1 << (width - 1)) - 1


@jit
def sizes_of(c, left):
    """(rows, 1): how many coefficients each row has, `left` being all of them."""
    rows: tl.constexpr = c.shape[0]
    row = tl.arange(0, rows)[:, None]
    return tl.minimum(tl.maximum(left - row * c.shape[1], 0), c.shape[1]).to(tl.int32)


@jit
def wanted_of(sizes, count, SIZE: tl.constexpr):
    return (sizes * count + SIZE - 1) // SIZE


@jit
def fitted_base(tops, WIDTH: tl.constexpr, SHIFT: tl.constexpr):
    """The bases of rows whose largest magnitudes are `tops`; 0 if one is not finite."""
    base = tops * 0 + 1
    if WIDTH:
        top = tl.minimum(tops + (1 << (SHIFT - 1)), _MAX_FINITE) >> SHIFT
        base = tl.maximum(top - positive(WIDTH) + 1, 1)
    return tl.where(tops < NOT_FINITE, base, 0)


@jit
def is_scale(base, WIDTH: tl.constexpr, SHIFT: tl.constexpr):
    """Does an encoder write such a base?"""
    most: tl.constexpr = ((0x7F7FFFFF >> SHIFT) + 1 - positive(WIDTH)) if WIDTH else 1
    return (base >= 0) & (base <= most)


@jit
def coded(bits, base, WIDTH: tl.constexpr, SHIFT: tl.constexpr):
    """The range floats nearest to values, from their bits."""
    if WIDTH:
        top: tl.constexpr = positive(WIDTH)
        under = tl.maximum(base, 1)
        magnitude, eps = bits & 0x7FFFFFFF, under << SHIFT
        half = tl.where(eps >= 2 * _OCTAVE, eps - _OCTAVE, eps >> 1)
        code = ((magnitude + (1 << (SHIFT - 1))) >> SHIFT) - under + 1
        code = tl.minimum(tl.maximum(code, 1), top)
        code = tl.where(magnitude < half, 0, code)
        bits = tl.where((bits < 0) & (code > 0), code + top, code)
    return tl.where(base > 0, bits, 0)


@jit
def decoded(code, base, WIDTH: tl.constexpr, SHIFT: tl.constexpr):
    """What codes stand for; NaN in rows of base 0."""
    if WIDTH:
        top: tl.constexpr = positive(WIDTH)
        step = tl.where(code > top, code - top, code) - 1 + base
        pattern = tl.minimum(step, _MAX_FINITE >> SHIFT) << SHIFT
        code = tl.where(code > 0, pattern, 0) | (code > top).to(tl.int32) << 31
    return tl.where(base > 0, code.to(tl.float32, bitcast=True), float("nan"))


@jit
def chosen_of(bits, inside, sizes, count):
    """(largest magnitudes, which are kept, their places): `count` of a whole row, from 1 on."""
    size: tl.constexpr = bits.shape[1]
    patterns, wanted = tl.where(inside, bits & 0x7FFFFFFF, -1), wanted_of(sizes, count, size)
    tops = tl.max(patterns, 1, keep_dims=True)
    finite = tops < NOT_FINITE  # else the first ones are kept: all are made equal
    patterns = tl.where(finite | (patterns < 0), patterns, 0)
    least = threshold(patterns, sizes, wanted, tl.where(finite, tops, 0))
    chosen, places = ranked(patterns, least, wanted - reaching(patterns, least + 1))
    return tops, chosen, places


@jit
def load_base(scales, row, inside, WIDTH: tl.constexpr, SHIFT: tl.constexpr):
    """The scales of some rows, of two bytes or, with long mantissas, of four."""
    nbytes: tl.constexpr = 4 if WIDTH and SHIFT < 16 else 2
    base = tl.load(scales + row * nbytes, mask=inside, other=1).to(tl.int32)
    for b in tl.static_range(1, nbytes):
        octet = tl.load(scales + row * nbytes + b, mask=inside, other=0).to(tl.int32)
        base |= octet << (8 * b)
    return base


@jit
def store_base(scales, base, row, inside, WIDTH: tl.constexpr, SHIFT: tl.constexpr):
    nbytes: tl.constexpr = 4 if WIDTH and SHIFT < 16 else 2
    for b in tl.static_range(nbytes):
        octet = ((base >> (8 * b)) & 255).to(tl.uint8)
        tl.store(scales + row * nbytes + b, octet, mask=inside)


@jit
def load_codes(codes, row, place, chosen, count, number, is_whole, WIDTH: tl.constexpr):
    """The codes at `place` (from 0 on) of rows, of which there are `number` in all."""
    strip, inside = row // _STRIP, (row % _STRIP).to(tl.int32)
    if WIDTH == 0:
        code = _load_floats(codes + 4 * (row * count + place), chosen)
    elif is_whole:
        start = codes + strip * count * WIDTH + place
        code = _load_planes(start, strip * 0 + count, inside + place * 0, chosen, WIDTH)
    else:
        each = tl.minimum((number - strip * _STRIP * count + 7) // 8, count)
        at, wide = inside * count + place, tl.maximum(each, 1).to(tl.int32)
        start = codes + strip * count * WIDTH + at % wide
        code = _load_planes(start, each, at // wide, chosen, WIDTH)
    return code


@jit
def _load_planes(start, each, eighth, inside, WIDTH: tl.constexpr):
    """Codes of which planes, `each` bytes long, begin at `start`."""
    code = eighth * 0
    for d in tl.static_range(digits(WIDTH)):
        plane = place_of(WIDTH, d) + eighth % bits_of(WIDTH, d)
        octet = tl.load(start + plane * each, mask=inside, other=0).to(tl.int32)
        digit = octet >> (eighth // bits_of(WIDTH, d) * bits_of(WIDTH, d))
        code |= (digit & ((1 << bits_of(WIDTH, d)) - 1)) << place_of(WIDTH, d)
    return code


@jit
def _load_floats(octets, inside):
    """The bits of floats, which need not be aligned."""
    bits = tl.load(octets, mask=inside, other=0).to(tl.int32)
    for b in tl.static_range(1, 4):
        bits |= tl.load(octets + b, mask=inside, other=0).to(tl.int32) << (8 * b)
    return bits


@jit
def store_code(codes, code, at, chosen, WIDTH: tl.constexpr):
    """Codes one by one, floats as four bytes."""
    if WIDTH:
        tl.store(codes + at, code.to(codes.dtype.element_ty), mask=chosen)
    else:
        for b in tl.static_range(4):
            tl.store(codes + 4 * at + b, ((code >> (8 * b)) & 255).to(tl.uint8), mask=chosen)
