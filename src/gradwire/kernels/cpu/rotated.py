"""Rotated values in Numba: quantizing is one pass over memory, and so is the mean of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.butterflies import ROW, fold
from gradwire.kernels.cpu.calls import array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.gaussian import dequantize_rows, quantize_rows
from gradwire.kernels.cpu.intrinsics import as_float
from gradwire.kernels.cpu.rotation import (
    INF_BITS,
    padded_size,
    room_for,
    rotate,
    rotate_back,
    signs_at,
    tame,
)
from gradwire.kernels.cpu.scales import max_bits
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.kernels.formats.rotation import LARGEST, LEVELS, MARGIN, thresholds
from gradwire.key import Key

_NAN = np.float32(np.nan)
_LARGEST = np.float32(LARGEST)


@jit
def _quantize_block(values, packed, signs, bits, limits, room):  # type: ignore[no-untyped-def]
    """The scale of a block; its codes are written."""
    state, bounds, size, top = room.state, room.units, len(values), max_bits(values)
    exponent = min(max(top >> 23, 1), 253)
    state[:] = 0
    state[0] = as_float(np.int32((254 - exponent) << 23))
    rotate(tame(values, top, room.padded), signs, size, room)
    fold(state.ctypes.data)
    square = state[0]
    deviation = np.sqrt(square * np.float32(size / 16))
    for k in range(len(limits)):
        bounds[k] = deviation * limits[k]
    state[:] = 0
    rows, sums = room.rows.ctypes.data, state.ctypes.data
    quantize_rows(rows, packed.ctypes.data, size, bits, bounds.ctypes.data, sums + ROW)
    fold(sums)
    if top >= INF_BITS:
        return _NAN
    if square == 0:
        return np.float32(0)
    scale = square * np.float32(size / 4) / state[0]
    return min(scale * as_float(np.int32(exponent << 23)), _LARGEST)


@jit
def _quantize(x, scales, packed, bits, block, limits, room, key, place):  # type: ignore[no-untyped-def]
    for at in range(0, len(x), block):
        stop = min(at + block, len(x))
        signs = signs_at(place + at, at == 0, room.words, key)
        values = load_tile(x, at, stop, room.padded[: padded_size(stop - at)])
        codes = packed[at // 8 * bits :]
        scales[at // block] = _quantize_block(values, codes, signs, bits, limits, room)


@jit
def _add_up(scales, codes, at, size, bits, block, ratio, levels, room):  # type: ignore[no-untyped-def]
    """The sum of a block of all vectors, still rotated; are their scales finite?"""
    rows, units = room.rows.ctypes.data, room.units.ctypes.data
    for i in range(len(codes)):
        scale = scales[i, at // block]
        if not np.isfinite(scale):
            return False
        for k in range(len(levels)):
            room.units[k] = scale * ratio * levels[k]
        dequantize_rows(codes[i] + at // 8 * bits, rows, size, bits, units, i > 0)
    return True


@jit
def _dequantize(scales, codes, out, bits, block, ratio, accumulate, levels, room, key, place):  # type: ignore[no-untyped-def]
    for at in range(0, len(out), block):
        target = out[at : at + block]
        signs = signs_at(place + at, at == 0, room.words, key)
        size = padded_size(len(target))
        if _add_up(scales, codes, at, size, bits, block, ratio, levels, room):
            rotate_back(target, signs, accumulate, room)
        else:
            target[:] = _NAN


def quantize_rotated(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    bits: int,
    block: int,
    key: Key,
    offset: int = 0,
) -> None:
    values, scale, packed, words = array(x), array(scales), array(codes), key_words(key)
    limits = np.array(thresholds(bits), np.float32)

    def run(start: int, stop: int) -> None:
        room = room_for(block, len(LEVELS[bits]))
        _quantize(
            values[start:stop], scale[start // block :], packed[packed_nbytes(start, bits) :],
            bits, block, limits, room, words, offset + start,
        )  # fmt: skip

    over_threads(x.numel(), block, run)


def dequantize_rotated(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    out: Tensor,
    *,
    bits: int,
    block: int,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    values, words, ratio = array(out), key_words(key), np.float32(weight * MARGIN)
    own = np.stack([array(scale) for scale in scales])
    places = np.array([packed.data_ptr() for packed in codes], np.int64)
    levels = np.array(LEVELS[bits], np.float32)

    def run(start: int, stop: int) -> None:
        room = room_for(block, len(levels))
        _dequantize(
            own[:, start // block :], places + packed_nbytes(start, bits), values[start:stop],
            bits, block, ratio, accumulate, levels, room, words, offset + start,
        )  # fmt: skip

    over_threads(out.numel(), block, run)
