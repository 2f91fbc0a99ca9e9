"""The inner loops of the Numba kernels, on one tile of at most 512 values that stays in L1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from gradwire.kernels.cpu.intrinsics import (
    add16,
    add32,
    and8,
    as_bits,
    as_float,
    bf16_bits,
    clip,
    floor16,
    fp16_bits,
    inline,
    jit,
    level,
    magnitude_bits,
    mul32,
    mulhi32,
    nearest,
    or8,
    shl8,
    shr8,
    xor32,
)
from gradwire.kernels.formats.layout import MAX_SCALE, MIN_SCALE, TILE

_INF_BITS = np.int32(0x7F800000)
_NAN = np.float32(np.nan)
_TINY, _HUGE = np.float32(MIN_SCALE), np.float32(MAX_SCALE)


@inline
def philox_words(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Philox-4x32-7."""
    for _ in range(7):
        high0, low0 = mulhi32(np.uint32(0xD2511F53), c0), mul32(np.uint32(0xD2511F53), c0)
        high1, low1 = mulhi32(np.uint32(0xCD9E8D57), c2), mul32(np.uint32(0xCD9E8D57), c2)
        c0, c1 = xor32(xor32(high1, c1), k0), low1
        c2, c3 = xor32(xor32(high0, c3), k1), low0
        k0, k1 = add32(k0, np.uint32(0x9E3779B9)), add32(k1, np.uint32(0xBB67AE85))
    return c0, c1, c2, c3


@jit
def random_tile(words, size, base, key):  # type: ignore[no-untyped-def]
    """Four planes of Philox words for a tile; `words` as 16-bit halves has one for each value."""
    stride = size // 8
    c1, c2, c3, k0, k1 = key
    for j in range(stride):
        a, b, c, d = philox_words(add32(base, np.uint32(j)), c1, c2, c3, k0, k1)
        words[j] = a
        words[stride + j] = b
        words[2 * stride + j] = c
        words[3 * stride + j] = d


@jit
def rotate(dither, shift):  # type: ignore[no-untyped-def]
    """Add `shift` to 16-bit words, which wrap."""
    shift = np.uint16(shift)
    for i in range(len(dither)):
        dither[i] = add16(dither[i], shift)


def widen(x: Any, start: int, stop: int, tile: Any) -> None:
    """Copy x[start:stop] to `tile` as float32 and fill the rest with zeros."""


@overload(widen)
def _widen_for(x, start, stop, tile):  # type: ignore[no-untyped-def]
    """By the type of `x`: float32 as it is, uint16 holds bfloat16, int16 holds float16."""
    if x.dtype == types.float32:

        def copy(x, start, stop, tile):  # type: ignore[no-untyped-def]
            source = x[start:stop]
            for i in range(stop - start):
                tile[i] = source[i]
            tile[stop - start :] = np.float32(0)

    elif x.dtype == types.uint16:

        def copy(x, start, stop, tile):  # type: ignore[no-untyped-def]
            source = x[start:stop]
            for i in range(stop - start):
                tile[i] = as_float(bf16_bits(source[i]))
            tile[stop - start :] = np.float32(0)

    else:

        def copy(x, start, stop, tile):  # type: ignore[no-untyped-def]
            # s eeeee mmmmmmmmmm: shift into a float32's place, then mend the exponent's bias by a
            # product, which also makes subnormals normal. Exponent 31 is inf or NaN.
            source = x[start:stop]
            for i in range(stop - start):
                half = fp16_bits(source[i])
                body = (half & np.int32(0x7FFF)) << np.int32(13)
                value = as_bits(as_float(np.int32(body)) * np.float32(2.0**112))
                special = np.int32(0x7F800000) if body >= np.int32(0x0F800000) else np.int32(0)
                sign = (half & np.int32(0x8000)) << np.int32(16)
                tile[i] = as_float(np.int32(value | special | sign))
            tile[stop - start :] = np.float32(0)

    return copy


def load_tile(x: Any, start: int, stop: int, room: Any) -> Any:
    """x[start:stop] as a tile of float32: in place if that is what it is, else in `room`."""


@overload(load_tile)
def _load_tile_for(x, start, stop, room):  # type: ignore[no-untyped-def]
    if x.dtype == types.float32:

        def load(x, start, stop, room):  # type: ignore[no-untyped-def]
            if stop - start == TILE:
                return x[start:stop]
            widen(x, start, stop, room)
            return room

    else:

        def load(x, start, stop, room):  # type: ignore[no-untyped-def]
            widen(x, start, stop, room)
            return room

    return load


@jit
def _max_bits(tile):  # type: ignore[no-untyped-def]
    """The largest magnitude, as bits: inf and NaN come out on top."""
    bits = tile.view(np.int32)
    top = np.int32(0)
    for i in range(len(bits)):
        top = max(top, magnitude_bits(bits[i]))
    return top


@jit
def tree_sum(values, size):  # type: ignore[no-untyped-def]
    """Sum of values[:size], size a power of two, by halves; they are overwritten."""
    while size > 1:
        size //= 2
        for i in range(size):
            values[i] += values[size + i]
    return values[0]


@jit
def sum_of_squares(part, squares):  # type: ignore[no-untyped-def]
    """As many values as a power of two; `squares` is room to work in."""
    for i in range(len(part)):
        squares[i] = np.float64(part[i]) * np.float64(part[i])
    return tree_sum(squares, len(part))


@jit
def _scale(top, l2, square):  # type: ignore[no-untyped-def]
    """The scale of a block from the bits of its maximum, or from its sum of squares."""
    if top >= _INF_BITS:
        return _NAN
    scale = np.float32(np.sqrt(square)) if l2 else as_float(np.int32(top))
    return min(max(scale, _TINY), _HUGE)


@jit
def scales_in_tile(tile, count, block, l2, scales, squares):  # type: ignore[no-untyped-def]
    """The scales of the blocks of one tile; `squares` is room to work in."""
    for b in range(-(-count // block)):
        part = tile[b * block : (b + 1) * block]
        square = sum_of_squares(part, squares) if l2 else 0.0
        scales[b] = _scale(_max_bits(part), l2, square)


@jit
def scale_of_tiles(x, start, stop, l2, tile):  # type: ignore[no-untyped-def]
    """The scale of one block of several tiles."""
    squares = np.empty(TILE, np.float64)
    size = 1
    while size < -(-(stop - start) // TILE):
        size *= 2
    sums = np.zeros(size, np.float64)
    top = np.int32(0)
    for t in range(-(-(stop - start) // TILE)):
        at = start + t * TILE
        widen(x, at, min(at + TILE, stop), tile)
        top = max(top, _max_bits(tile))
        if l2:
            sums[t] = sum_of_squares(tile, squares)
    return _scale(top, l2, tree_sum(sums, size) if l2 else 0.0)


@jit
def round_block(values, dither, codes, scale, levels):  # type: ignore[no-untyped-def]
    """The scaled value to 16 fraction bits, plus 16 random ones, floored."""
    if np.isnan(scale):
        codes[:] = 0
        return
    top, bias = np.float32(levels << 16), np.int32(levels << 16)
    factor = top / scale
    for i in range(len(values)):
        codes[i] = floor16(nearest(clip(values[i] * factor, top)), bias, dither[i])


@jit
def pack_tile(codes, size, width, packed):  # type: ignore[no-untyped-def]
    """Field by field, see `formats/layout.py`."""
    start, shift = 0, np.uint8(0)
    for bits in (8, 4, 2, 1):
        if width & bits:
            mask = np.uint8((1 << bits) - 1)
            stride = size * bits // 8
            out = packed[start : start + stride]
            for k in range(stride):
                out[k] = and8(shr8(codes[k], shift), mask)
            for m in range(1, 8 // bits):
                part = codes[m * stride : (m + 1) * stride]
                place = np.uint8(bits * m)
                for k in range(stride):
                    out[k] = or8(out[k], shl8(and8(shr8(part[k], shift), mask), place))
            start += stride
            shift = np.uint8(shift + bits)


@jit
def unpack_tile(packed, size, width, codes):  # type: ignore[no-untyped-def]
    """The inverse of `pack_tile`."""
    start, shift = 0, np.uint8(0)
    for bits in (8, 4, 2, 1):
        if width & bits:
            mask = np.uint8((1 << bits) - 1)
            stride = size * bits // 8
            source = packed[start : start + stride]
            for m in range(8 // bits):
                part = codes[m * stride : (m + 1) * stride]
                place = np.uint8(bits * m)
                if shift == 0:
                    for k in range(stride):
                        part[k] = and8(shr8(source[k], place), mask)
                else:
                    for k in range(stride):
                        part[k] = or8(part[k], shl8(and8(shr8(source[k], place), mask), shift))
            start += stride
            shift = np.uint8(shift + bits)


@jit
def store_codes(codes, zero, scales, out, at, count, block, ratio, accumulate):  # type: ignore[no-untyped-def]
    """The codes of the tile at `at`, less `zero`, to values: written to `out`, or added."""
    span = min(block, TILE)
    for a in range(0, count, span):
        b = min(a + span, count)
        unit = scales[(at + a) // block] * ratio
        code, target = codes[a:b], out[at + a : at + b]
        if accumulate:
            for i in range(b - a):
                target[i] += level(code[i], zero) * unit
        else:
            for i in range(b - a):
                target[i] = level(code[i], zero) * unit
