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
from gradwire.kernels.cpu.octets import byte_pointer, float_pointer, half_pointer
from gradwire.kernels.cpu.pack import unpack_tile
from gradwire.kernels.cpu.philox import random_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.formats.layout import MAX_SCALE, TILE, packed_nbytes
from gradwire.key import Key

_HUGE = np.float32(MAX_SCALE)


@jit
def round_block(values, dither, codes, size, unit, zero):  # type: ignore[no-untyped-def]
    """One block or the part of it in a tile: values in steps to 16 fraction bits, then floored.

    Values, dither and codes are addresses.
    """
    own, noise, out = float_pointer(values), half_pointer(dither), byte_pointer(codes)
    if not unit > 0:
        for i in range(size):
            out[i] = zero
        return
    factor = np.float32(65536) / unit
    top = min(np.float32(127 << 16), factor * _HUGE)
    for i in range(size):
        out[i] = wrapped_floor(nearest(clip(own[i] * factor, top)), zero, noise[i])


@jit
def round_tile(values, size, units, at, block, zero, codes, words, key, counter):  # type: ignore[no-untyped-def]
    """The codes of the tile that begins with value `at`; values and codes are addresses."""
    random_tile(words, size, np.uint32(counter + at // 8), key)
    dither, span = words.ctypes.data, min(block, TILE)
    for a in range(0, size, span):
        unit, count = units[(at + a) // block], min(span, size - a)
        round_block(values + 4 * a, dither + 2 * a, codes + a, count, unit, zero)


@jit
def restore_tile(codes, count, units, at, block, zero, ratio, accumulate, out, words, key, counter):  # type: ignore[no-untyped-def]
    """Values of `count` codes from the tile that begins with value `at`; codes is an address."""
    random_tile(words, -(-count // 8) * 8, np.uint32(counter + at // 8), key)
    dither, span = words.ctypes.data, min(block, TILE)
    for a in range(0, count, span):
        code, noise, target = byte_pointer(codes + a), half_pointer(dither + 2 * a), at + a
        unit, values = units[target // block] * ratio, float_pointer(out + 4 * target)
        if accumulate:
            for i in range(min(span, count - a)):
                values[i] += exact_level(code[i], zero, noise[i]) * unit
        else:
            for i in range(min(span, count - a)):
                values[i] = exact_level(code[i], zero, noise[i]) * unit


@jit
def _quantize(x, units, codes, zero, block, key, counter):  # type: ignore[no-untyped-def]
    room, words = np.empty(TILE, np.float32), np.empty(TILE // 2, np.uint32)
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        tile, size = load_tile(x, at, stop, room), -(-(stop - at) // 8) * 8
        place = codes.ctypes.data + at
        round_tile(tile.ctypes.data, size, units, at, block, zero, place, words, key, counter)


@jit
def _dequantize(units, packed, out, zero, width, block, ratio, accumulate, key, counter):  # type: ignore[no-untyped-def]
    words, codes = np.empty(TILE // 2, np.uint32), np.empty(TILE, np.uint8)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        unpack_tile(packed[at // 8 * width :], -(-count // 8) * 8, width, codes)
        restore_tile(
            codes.ctypes.data, count, units, at, block, zero, ratio, accumulate, out.ctypes.data,
            words, key, counter,
        )  # fmt: skip


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
