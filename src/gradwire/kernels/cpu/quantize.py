"""Stochastic rounding to levels of a scale in Numba.

The norm of a block and its codes are one pass over memory; so is the mean of two vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import NORMS, array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.debt import due_of, owe, owe_dithered, owing, part
from gradwire.kernels.cpu.intrinsics import level
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.cpu.philox import add_shift, random_tile
from gradwire.kernels.cpu.scales import scale_of_tiles, scales_in_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile, round_block, store_codes
from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.layout import MIN_SCALE, TILE, packed_nbytes
from gradwire.key import Key

_TINY = np.float32(MIN_SCALE)


@jit
def _quantize(  # type: ignore[no-untyped-def]
    x, numel, scales, packed, levels, top, width, block, norm, key, counter, shift, dithered, owing
):
    room, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    words = np.empty(TILE // 2, np.uint32)
    dither = words.view(np.uint16)
    codes = np.empty(TILE, np.uint8)
    span = min(block, TILE)
    for at in range(0, numel, TILE):
        stop = min(at + TILE, numel)
        if norm and block > TILE and at % block == 0:
            end = min(at + block, numel)
            scales[at // block] = scale_of_tiles(x, at, end, norm == 2, room)
        tile = load_tile(x, at, stop, room)
        if norm and block <= TILE:
            scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)
        size = -(-(stop - at) // 8) * 8
        random_tile(words, size, np.uint32(counter + at // 8), key)
        if shift:
            add_shift(dither, shift)
        for a in range(0, size, span):
            b = min(a + span, size)
            round_block(tile[a:b], dither[a:b], codes[a:b], scales[(at + a) // block], top)
        pack_tile(codes, size, width, packed[at // 8 * width :])
        if owing is not None:
            _owe(tile, stop, codes, dither, scales, at, span, block, levels, dithered, owing)


@jit
def _owe(tile, stop, codes, dither, scales, at, span, block, levels, dithered, owing):  # type: ignore[no-untyped-def]
    """What the codes of the tile at `at` do not say of it."""
    for a in range(0, stop - at, span):
        scale, count = scales[(at + a) // block], min(span, stop - at - a)
        values, code = tile.ctypes.data + 4 * a, codes.ctypes.data + a
        if dithered:
            step = np.float32(0) if scale <= _TINY else scale / np.float32(levels)
            unit = step * np.float32(-(2.0**-17))
            noise = dither.ctypes.data + 2 * a
            owe_dithered(values, code, noise, count, np.uint8(levels), unit, owing, at + a)
        else:
            unit = scale * np.float32(-1 / levels)
            owe(values, code, count, np.int32(levels), unit, owing, at + a)


@jit
def _dequantize(scales, packed, out, levels, width, block, ratio, accumulate):  # type: ignore[no-untyped-def]
    codes = np.empty(TILE, np.uint8)
    zero = np.int32(levels)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        unpack_tile(packed[at // 8 * width :], -(-count // 8) * 8, width, codes)
        store_codes(codes, zero, scales, out, at, count, block, ratio, accumulate)


@jit
def _dequantize_two(  # type: ignore[no-untyped-def]
    scales, packed, more_scales, more_packed, out, levels, width, block, ratio, accumulate
):
    codes, more_codes = np.empty(TILE, np.uint8), np.empty(TILE, np.uint8)
    span = min(block, TILE)
    zero = np.int32(levels)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        size, start = -(-count // 8) * 8, at // 8 * width
        unpack_tile(packed[start:], size, width, codes)
        unpack_tile(more_packed[start:], size, width, more_codes)
        for a in range(0, count, span):
            b = min(a + span, count)
            unit = scales[(at + a) // block] * ratio
            more_unit = more_scales[(at + a) // block] * ratio
            code, more_code, target = codes[a:b], more_codes[a:b], out[at + a : at + b]
            if accumulate:
                for i in range(b - a):
                    first = target[i] + level(code[i], zero) * unit
                    target[i] = first + level(more_code[i], zero) * more_unit
            else:
                for i in range(b - a):
                    first = level(code[i], zero) * unit
                    target[i] = first + level(more_code[i], zero) * more_unit


def quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    debt: Debt | None = None,
    *,
    levels: float,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
    shift: int = 0,
    dithered: bool = False,
) -> None:
    values, owed, scale, packed = due_of(x, debt), owing(debt), array(scales), array(codes)
    size, words, top = block or max(x.numel(), TILE), key_words(key), int(levels * (1 << 16))

    def run(start: int, stop: int) -> None:
        part_packed, counter = packed[packed_nbytes(start, width) :], (offset + start) // 8
        _quantize(
            part(values, start, stop), stop - start, scale[start // size :], part_packed,
            int(levels), top, width, size, NORMS[norm], words, counter, shift, dithered,
            part(owed, start, stop),
        )  # fmt: skip

    over_threads(x.numel(), size, run)


def dequantize(
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    scale, packed, values = array(scales), array(codes), array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(weight / levels)

    def run(start: int, stop: int) -> None:
        part_scale, part_packed = scale[start // size :], packed[packed_nbytes(start, width) :]
        part = values[start:stop]
        _dequantize(part_scale, part_packed, part, levels, width, size, ratio, accumulate)

    over_threads(out.numel(), size, run)


def dequantize_mean(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
) -> None:
    rows, packed, values = [array(s) for s in scales], [array(c) for c in codes], array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(1 / len(rows) / levels)

    def run(start: int, stop: int) -> None:
        a, b, part = start // size, packed_nbytes(start, width), values[start:stop]
        for i in range(0, len(rows) - 1, 2):
            _dequantize_two(
                rows[i][a:], packed[i][b:], rows[i + 1][a:], packed[i + 1][b:], part,
                levels, width, size, ratio, i > 0,
            )  # fmt: skip
        if len(rows) % 2:
            last, last_packed = rows[-1][a:], packed[-1][b:]
            _dequantize(last, last_packed, part, levels, width, size, ratio, len(rows) > 1)

    over_threads(out.numel(), size, run)
