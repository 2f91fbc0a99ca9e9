"""Nested dithered quantization in Numba."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.dithered import round_block
from gradwire.kernels.cpu.intrinsics import exact_level, whole
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.cpu.philox import random_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import widen
from gradwire.kernels.formats.layout import TILE, packed_nbytes
from gradwire.key import Key


@jit
def _quantize(x, units, packed, places, width, block, key, counter):  # type: ignore[no-untyped-def]
    tile, words = np.empty(TILE, np.float32), np.empty(TILE // 2, np.uint32)
    codes, span = np.empty(TILE, np.uint8), min(block, TILE)
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        widen(x, at, stop, tile)
        size = -(-(stop - at) // 8) * 8
        random_tile(words, size, np.uint32(counter + at // 8), key)
        for a in range(0, size, span):
            unit, count = units[(at + a) // block], min(span, size - a)
            values, noise = tile.ctypes.data + 4 * a, words.ctypes.data + 2 * a
            round_block(values, noise, codes.ctypes.data + a, count, unit, np.uint8(0))
        for i in range(size):
            codes[i] = places[codes[i]]
        pack_tile(codes, size, width, packed[at // 8 * width :])


@jit
def _add(units, packed, total, part, share, ratio, alpha, width, block, key, counter):  # type: ignore[no-untyped-def]
    words, codes = np.empty(TILE // 2, np.uint32), np.empty(TILE, np.uint8)
    dither, span, middle = words.view(np.uint16), min(block, TILE), np.uint8(ratio // 2)
    cell, inverse = np.float32(ratio), np.float32(1 / ratio)
    for at in range(0, len(total), TILE):
        count = min(TILE, len(total) - at)
        size = -(-count // 8) * 8
        unpack_tile(packed[at // 8 * width :], size, width, codes)
        random_tile(words, size, np.uint32(counter + at // 8), key)
        for a in range(0, count, span):
            b = min(a + span, count)
            unit = units[(at + a) // block]
            if unit == 0:
                continue
            scale, step = alpha / unit, unit * alpha
            code, dithers, target = codes[a:b], dither[a:b], total[at + a : at + b]
            for i in range(b - a):
                y = target[i] * part
                r = exact_level(code[i], middle, dithers[i]) * np.float32(2.0**-17) - y * scale
                target[i] += (y + (r - whole(r * inverse) * cell) * step) * share


def quantize_nested(
    x: Tensor,
    units: Tensor,
    codes: Tensor,
    *,
    ratio: int,
    width: int,
    block: int | None,
    key: Key,
    offset: int = 0,
) -> None:
    values, unit, words = array(x), array(units), key_words(key)
    packed, size = array(codes), block or max(x.numel(), TILE)
    levels = np.arange(256).astype(np.int8).astype(np.int64)
    places = ((levels + ratio // 2) % ratio).astype(np.uint8)

    def run(start: int, stop: int) -> None:
        part, part_unit = values[start:stop], unit[start // size :]
        part_packed, counter = packed[packed_nbytes(start, width) :], (offset + start) // 8
        _quantize(part, part_unit, part_packed, places, width, size, words, counter)

    over_threads(x.numel(), size, run)


def add_nested(
    units: Tensor,
    codes: Tensor,
    total: Tensor,
    *,
    count: int,
    ratio: int,
    alpha: float,
    width: int,
    block: int | None,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
) -> None:
    unit, packed, values = array(units), array(codes), array(total)
    words, size = key_words(key), block or max(total.numel(), TILE)
    part, share = np.float32(1 / (count * weight)), np.float32(weight)
    scale = np.float32(alpha)

    def run(start: int, stop: int) -> None:
        part_unit, part_packed = unit[start // size :], packed[packed_nbytes(start, width) :]
        target, counter = values[start:stop], (offset + start) // 8
        _add(
            part_unit, part_packed, target, part, share, ratio, scale, width, size, words, counter
        )  # fmt: skip

    over_threads(total.numel(), size, run)
