"""Codes of a sign and an exponent in Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from torch import Tensor

from gradwire.kernels.cpu.calls import NORMS, array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import expression
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.cpu.philox import random_tile
from gradwire.kernels.cpu.scales import scale_of_tiles, scales_in_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.formats.layout import TILE, packed_nbytes
from gradwire.key import Key

_I8, _I32, _F32 = ir.IntType(8), ir.IntType(32), ir.FloatType()


def _build_exp_code(b: Any, value: Any, inverse: Any, range_: Any, most: Any, dither: Any) -> Any:
    """`range_` is the largest magnitude over the least, as a float."""
    bits = b.bitcast(value, _I32)
    magnitude = b.bitcast(b.and_(bits, _I32(0x7FFFFFFF)), _F32)
    one = _F32(1.0)
    share = b.fmul(magnitude, inverse)
    share = b.fmul(b.select(b.fcmp_ordered("<", share, one), share, one), range_)
    random = b.zext(dither, _I32)
    carried = b.add(b.add(b.bitcast(share, _I32), _I32(64)), b.shl(random, _I32(7)))
    power = b.sub(b.lshr(carried, _I32(23)), _I32(127))
    below = b.select(b.fcmp_ordered("<", share, one), share, one)
    lrint = b.module.declare_intrinsic("llvm.lrint", [_I32, _F32], ir.FunctionType(_I32, [_F32]))
    rounded = b.call(lrint, [b.fmul(below, _F32(65536.0))])
    least = b.mul(most, b.lshr(b.add(rounded, random), _I32(16)))
    code = b.select(b.fcmp_ordered(">=", share, one), b.sub(most, power), least)
    sign = b.select(b.icmp_signed("<", bits, _I32(0)), b.add(most, _I32(1)), _I32(0))
    signed = b.select(b.icmp_signed("==", code, _I32(0)), code, b.or_(code, sign))
    return b.trunc(signed, _I8)


def _build_exp_level(b: Any, code: Any, most: Any, top: Any) -> Any:
    """`top` is the exponent field of a float32 that c = 0 would have."""
    wide = b.zext(code, _I32)
    c = b.and_(wide, most)
    power = b.shl(b.sub(top, c), _I32(23))
    sign = b.select(b.icmp_signed(">", wide, most), _I32(-0x80000000), _I32(0))
    return b.bitcast(b.select(b.icmp_signed("==", c, _I32(0)), _I32(0), b.or_(power, sign)), _F32)


def _build_exp_sum(b: Any, first: Any, second: Any, most: Any, dither: Any) -> Any:
    x, y = b.zext(first, _I32), b.zext(second, _I32)
    cx, cy = b.and_(x, most), b.and_(y, most)
    first_larger = b.icmp_signed("<=", cx, cy)
    larger = b.select(first_larger, x, y)
    apart = b.select(first_larger, b.sub(cy, cx), b.sub(cx, cy))
    alike = b.icmp_signed("<=", b.xor(x, y), most)
    rare = b.sub(apart, b.select(alike, _I32(0), _I32(1)))
    equal = b.icmp_signed("==", apart, _I32(0))
    shift = b.select(b.icmp_unsigned("<", rare, _I32(16)), rare, _I32(16))
    drawn = b.icmp_unsigned("<", b.shl(b.zext(dither, _I32), shift), _I32(65536))
    move = b.and_(drawn, b.icmp_signed("<=", rare, _I32(16)))
    step = b.select(alike, _I32(-1), _I32(1))
    total = b.add(larger, b.select(move, step, _I32(0)))
    total = b.select(b.and_(b.not_(alike), equal), _I32(0), total)
    total = b.select(b.icmp_signed("==", cy, _I32(0)), x, total)
    return b.trunc(b.select(b.icmp_signed("==", cx, _I32(0)), y, total), _I8)


_u8, _u16, _i32, _f32 = types.uint8, types.uint16, types.int32, types.float32
_exp_code = expression(_u8, (_f32, _f32, _f32, _i32, _u16), _build_exp_code)
_exp_level = expression(_f32, (_u8, _i32, _i32), _build_exp_level)
_exp_sum = expression(_u8, (_u8, _u8, _i32, _u16), _build_exp_sum)


@jit
def _code_block(values, dither, codes, scale, most, range_):  # type: ignore[no-untyped-def]
    if np.isnan(scale):
        codes[:] = 0
        return
    inverse = np.float32(1) / scale
    for i in range(len(values)):
        codes[i] = _exp_code(values[i], inverse, range_, most, dither[i])


@jit
def _exp_quantize(x, scales, packed, width, headroom, block, norm, key, counter):  # type: ignore[no-untyped-def]
    room, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    words = np.empty(TILE // 2, np.uint32)
    dither = words.view(np.uint16)
    codes = np.empty(TILE, np.uint8)
    span, most = min(block, TILE), np.int32((1 << width - 1) - 1)
    range_ = np.float32(2.0 ** (most - 1 - headroom))  # bits: whole powers of two are exact
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        if norm and block > TILE and at % block == 0:
            end = min(at + block, len(x))
            scales[at // block] = scale_of_tiles(x, at, end, norm == 2, room)
        tile = load_tile(x, at, stop, room)
        if norm and block <= TILE:
            scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)
        size = -(-(stop - at) // 8) * 8
        random_tile(words, size, np.uint32(counter + at // 8), key)
        for a in range(0, size, span):
            b = min(a + span, size)
            scale = scales[(at + a) // block]
            _code_block(tile[a:b], dither[a:b], codes[a:b], scale, most, range_)
        pack_tile(codes, size, width, packed[at // 8 * width :])


@jit
def _exp_dequantize(scales, packed, out, width, headroom, block, ratio, accumulate):  # type: ignore[no-untyped-def]
    codes = np.empty(TILE, np.uint8)
    span, most, top = min(block, TILE), np.int32((1 << width - 1) - 1), np.int32(128 + headroom)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        unpack_tile(packed[at // 8 * width :], -(-count // 8) * 8, width, codes)
        for a in range(0, count, span):
            b = min(a + span, count)
            unit = scales[(at + a) // block] * ratio
            code, target = codes[a:b], out[at + a : at + b]
            if accumulate:
                for i in range(b - a):
                    target[i] += _exp_level(code[i], most, top) * unit
            else:
                for i in range(b - a):
                    target[i] = _exp_level(code[i], most, top) * unit


@jit
def _exp_reduce(into, term, width, key, counter):  # type: ignore[no-untyped-def]
    first, second = np.empty(TILE, np.uint8), np.empty(TILE, np.uint8)
    words = np.empty(TILE // 2, np.uint32)
    dither = words.view(np.uint16)
    most, numel = np.int32((1 << width - 1) - 1), 8 * len(into) // width
    for at in range(0, numel, TILE):
        size, start = min(TILE, numel - at), at // 8 * width
        unpack_tile(into[start:], size, width, first)
        unpack_tile(term[start:], size, width, second)
        random_tile(words, size, np.uint32(counter + at // 8), key)
        for i in range(size):
            first[i] = _exp_sum(first[i], second[i], most, dither[i])
        pack_tile(first, size, width, into[start:])


def exp_quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    width: int,
    headroom: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
) -> None:
    values, scale, packed, words = array(x), array(scales), array(codes), key_words(key)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        part, part_scale = values[start:stop], scale[start // size :]
        part_packed, counter = packed[packed_nbytes(start, width) :], (offset + start) // 8
        _exp_quantize(
            part, part_scale, part_packed, width, headroom, size, NORMS[norm], words, counter
        )

    over_threads(x.numel(), size, run)


def exp_dequantize(
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    width: int,
    headroom: int,
    block: int | None,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    scale, packed, values = array(scales), array(codes), array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(weight)

    def run(start: int, stop: int) -> None:
        part_scale, part_packed = scale[start // size :], packed[packed_nbytes(start, width) :]
        part = values[start:stop]
        _exp_dequantize(part_scale, part_packed, part, width, headroom, size, ratio, accumulate)

    over_threads(out.numel(), size, run)


def exp_reduce(into: Tensor, term: Tensor, *, width: int, key: Key, offset: int = 0) -> None:
    first, second, words = array(into), array(term), key_words(key)

    def run(start: int, stop: int) -> None:
        part = slice(packed_nbytes(start, width), packed_nbytes(stop, width))
        _exp_reduce(first[part], second[part], width, words, (offset + start) // 8)

    over_threads(8 * into.numel() // width, TILE, run)
