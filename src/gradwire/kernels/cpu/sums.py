"""Sums of packed codes in Numba."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import array
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.fields import dither_words, store_levels
from gradwire.kernels.cpu.intrinsics import add_code, high8, level, low8, wide_level
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import store_codes
from gradwire.kernels.formats.fields import Dither, zero_of
from gradwire.kernels.formats.layout import TILE, packed_nbytes


@jit
def _add_packed(codes, stride, rows, total, numel, width, total_width):  # type: ignore[no-untyped-def]
    sums, part = np.empty(TILE, np.uint16), np.empty(TILE, np.uint8)
    for at in range(0, numel, TILE):
        size = -(-min(TILE, numel - at) // 8) * 8
        sums[:] = 0
        for row in range(rows):
            unpack_tile(codes[row * stride + at // 8 * width :], size, width, part)
            for i in range(size):
                sums[i] = add_code(sums[i], part[i])
        out = total[at // 8 * total_width :]
        if total_width <= 8:
            for i in range(size):
                part[i] = low8(sums[i])
            pack_tile(part, size, total_width, out)
        else:
            for i in range(size):
                out[i] = low8(sums[i])
                part[i] = high8(sums[i])
            pack_tile(part, size, total_width - 8, out[size:])


@jit
def _dequantize_sum(scales, total, out, width, zero, block, ratio, accumulate, dither):  # type: ignore[no-untyped-def]
    part, levels = np.empty(TILE, np.uint8), np.empty(TILE, np.float32)
    words = np.empty(TILE // 2, np.uint32)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        size, packed = -(-count // 8) * 8, total[at // 8 * width :]
        if width <= 8:
            unpack_tile(packed, size, width, part)
            if not dither[0]:
                store_codes(part, zero, scales, out, at, count, block, ratio, accumulate)
                continue
            for i in range(size):
                levels[i] = level(part[i], zero)
        else:
            unpack_tile(packed[size:], size, width - 8, part)
            for i in range(size):
                levels[i] = wide_level(packed[i], part[i], zero)
        store_levels(levels, scales, out, at, count, block, ratio, accumulate, dither, words)


def add_packed(codes: Tensor, total: Tensor, *, numel: int, width: int, total_width: int) -> None:
    if numel == 0:
        return
    rows, stride = codes.shape[0], codes.stride(0)
    span = (rows - 1) * stride + packed_nbytes(numel, width)
    flat, sums = array(codes.as_strided((span,), (1,))), array(total)

    def run(start: int, stop: int) -> None:
        rest, into = packed_nbytes(start, width), packed_nbytes(start, total_width)
        _add_packed(flat[rest:], stride, rows, sums[into:], stop - start, width, total_width)

    over_threads(numel, TILE, run)


def dequantize_sum(
    scales: Tensor,
    total: Tensor,
    out: Tensor,
    *,
    levels: float,
    width: int,
    block: int | None,
    terms: int = 1,
    weight: float = 1.0,
    accumulate: bool = False,
    dither: Dither | None = None,
) -> None:
    scale, packed, values = array(scales), array(total), array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(weight / levels)
    zero, dither = zero_of(levels, terms, dither)

    def run(start: int, stop: int) -> None:
        _dequantize_sum(
            scale[start // size :], packed[packed_nbytes(start, width) :], values[start:stop],
            width, np.int32(zero), size, ratio, accumulate, dither_words(dither, start),
        )  # fmt: skip

    over_threads(out.numel(), size, run)
