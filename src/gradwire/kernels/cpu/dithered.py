"""Subtractive dither in Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import (
    clip,
    exact_level,
    nearest,
    or8,
    shl8,
    shr8,
    wrapped_floor,
)
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.cpu.philox import random_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import widen
from gradwire.kernels.formats.layout import MAX_SCALE, TILE, packed_nbytes
from gradwire.key import Key

_HUGE = np.float32(MAX_SCALE)


@jit
def round_block(values, dither, codes, unit, zero):  # type: ignore[no-untyped-def]
    """One block or the part of it in a tile: values in steps to 16 fraction bits, then floored."""
    if not unit > 0:
        codes[:] = zero
        return
    factor = np.float32(65536) / unit
    top = min(np.float32(127 << 16), factor * _HUGE)
    for i in range(len(values)):
        codes[i] = wrapped_floor(nearest(clip(values[i] * factor, top)), zero, dither[i])


@jit
def _quantize(x, units, low, high, zero, planes, block, key, counter):  # type: ignore[no-untyped-def]
    tile, words = np.empty(TILE, np.float32), np.empty(TILE // 2, np.uint32)
    dither, codes = words.view(np.uint16), np.empty(TILE, np.uint8)
    span = min(block, TILE)
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        widen(x, at, stop, tile)
        size = -(-(stop - at) // 8) * 8
        random_tile(words, size, np.uint32(counter + at // 8), key)
        for a in range(0, size, span):
            b = min(a + span, size)
            round_block(tile[a:b], dither[a:b], codes[a:b], units[(at + a) // block], zero)
        if planes:
            pack_tile(codes, size, 4, low[at // 2 :])
            for i in range(size):
                codes[i] = shr8(codes[i], np.uint8(4))
            pack_tile(codes, size, 4, high[at // 2 :])
        else:
            pack_tile(codes, size, 8, low[at:])


@jit
def _dequantize(units, low, high, out, zero, width, planes, block, ratio, accumulate, key, counter):  # type: ignore[no-untyped-def]
    words, codes = np.empty(TILE // 2, np.uint32), np.empty(TILE, np.uint8)
    dither, upper = words.view(np.uint16), np.empty(TILE, np.uint8)
    span = min(block, TILE)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        size = -(-count // 8) * 8
        unpack_tile(low[at // 8 * width :], size, width, codes)
        if planes:
            unpack_tile(high[at // 8 * width :], size, width, upper)
            for i in range(size):
                codes[i] = or8(codes[i], shl8(upper[i], np.uint8(4)))
        random_tile(words, size, np.uint32(counter + at // 8), key)
        for a in range(0, count, span):
            b = min(a + span, count)
            unit = units[(at + a) // block] * ratio
            code, dithers, target = codes[a:b], dither[a:b], out[at + a : at + b]
            if accumulate:
                for i in range(b - a):
                    target[i] += exact_level(code[i], zero, dithers[i]) * unit
            else:
                for i in range(b - a):
                    target[i] = exact_level(code[i], zero, dithers[i]) * unit


def quantize_dithered(
    x: Tensor,
    units: Tensor,
    codes: Tensor,
    *,
    zero: int,
    planes: bool,
    block: int | None,
    key: Key,
    offset: int = 0,
) -> None:
    values, unit, words = array(x), array(units), key_words(key)
    packed, high = _planes(codes, x.numel())
    size, centre = block or max(x.numel(), TILE), np.uint8(zero)

    def run(start: int, stop: int) -> None:
        part, part_unit, counter = values[start:stop], unit[start // size :], (offset + start) // 8
        low = packed[packed_nbytes(start, 4 if planes else 8) :]
        upper = high[packed_nbytes(start, 4) :]
        _quantize(part, part_unit, low, upper, centre, planes, size, words, counter)

    over_threads(x.numel(), size, run)


def dequantize_dithered(
    units: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    zero: int,
    width: int,
    planes: bool,
    block: int | None,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    unit, values, words = array(units), array(out), key_words(key)
    packed, high = _planes(codes, out.numel())
    width = 4 if planes else width
    size, ratio = block or max(out.numel(), TILE), np.float32(weight * 2.0**-17)

    def run(start: int, stop: int) -> None:
        part, part_unit, counter = values[start:stop], unit[start // size :], (offset + start) // 8
        low, upper = packed[packed_nbytes(start, width) :], high[packed_nbytes(start, 4) :]
        _dequantize(
            part_unit, low, upper, part, np.uint8(zero), width, planes, size, ratio, accumulate,
            words, counter,
        )  # fmt: skip

    over_threads(out.numel(), size, run)


def _planes(codes: Tensor, numel: int) -> tuple[Any, Any]:
    """All bytes, and those from the second plane on, which only codes in planes have."""
    packed = array(codes)
    return packed, packed[packed_nbytes(numel, 4) :]
