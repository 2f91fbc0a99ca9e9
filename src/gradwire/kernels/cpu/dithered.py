"""Subtractive dither in Numba."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import (
    clip,
    exact_level,
    nearest,
    wrapped_floor,
)
from gradwire.kernels.cpu.pack import unpack_tile
from gradwire.kernels.cpu.philox import random_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile
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
def _quantize(x, units, codes, zero, block, key, counter):  # type: ignore[no-untyped-def]
    room, words = np.empty(TILE, np.float32), np.empty(TILE // 2, np.uint32)
    dither, span = words.view(np.uint16), min(block, TILE)
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        tile = load_tile(x, at, stop, room)
        size = -(-(stop - at) // 8) * 8
        random_tile(words, size, np.uint32(counter + at // 8), key)
        for a in range(0, size, span):
            b = min(a + span, size)
            part = codes[at + a : at + b]
            round_block(tile[a:b], dither[a:b], part, units[(at + a) // block], zero)


@jit
def _dequantize(units, packed, out, zero, width, block, ratio, accumulate, key, counter):  # type: ignore[no-untyped-def]
    words, codes = np.empty(TILE // 2, np.uint32), np.empty(TILE, np.uint8)
    dither, span = words.view(np.uint16), min(block, TILE)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        size = -(-count // 8) * 8
        unpack_tile(packed[at // 8 * width :], size, width, codes)
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
    block: int | None,
    key: Key,
    offset: int = 0,
) -> None:
    values, unit, octets, words = array(x), array(units), array(codes), key_words(key)
    size, centre = block or max(x.numel(), TILE), np.uint8(zero)

    def run(start: int, stop: int) -> None:
        part, part_unit, counter = values[start:stop], unit[start // size :], (offset + start) // 8
        _quantize(part, part_unit, octets[start:], centre, size, words, counter)

    over_threads(x.numel(), size, run)


def dequantize_dithered(
    units: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    zero: int,
    width: int,
    block: int | None,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    unit, packed, values, words = array(units), array(codes), array(out), key_words(key)
    size, ratio = block or max(out.numel(), TILE), np.float32(weight * 2.0**-17)

    def run(start: int, stop: int) -> None:
        part, part_unit, counter = values[start:stop], unit[start // size :], (offset + start) // 8
        _dequantize(
            part_unit, packed[packed_nbytes(start, width) :], part, np.uint8(zero), width, size,
            ratio, accumulate, words, counter,
        )  # fmt: skip

    over_threads(out.numel(), size, run)
