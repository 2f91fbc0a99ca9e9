"""Means of floats in Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import overload
from torch import Tensor

from gradwire.kernels.cpu.calls import array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import build_nearest, expression
from gradwire.kernels.cpu.philox import random_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import widen
from gradwire.kernels.formats.layout import TILE
from gradwire.key import Key

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()


def _build_to_bfloat16(builder: Any, value: Any, dither: Any) -> Any:
    total = builder.add(builder.bitcast(value, _I32), builder.zext(dither, _I32))
    half = builder.trunc(builder.lshr(total, _I32(16)), _I16)
    return builder.select(builder.fcmp_unordered("uno", value, value), _I16(0x7FC0), half)


def _build_to_float16(builder: Any, value: Any, dither: Any) -> Any:
    bits, noise = builder.bitcast(value, _I32), builder.zext(dither, _I32)
    magnitude = builder.and_(bits, _I32(0x7FFFFFFF))
    normal = builder.lshr(builder.add(magnitude, builder.lshr(noise, _I32(3))), _I32(13))
    normal = builder.sub(normal, _I32(112 << 10))
    is_huge = builder.icmp_signed(">", normal, _I32(0x7C00))
    normal = builder.select(is_huge, _I32(0x7C00), normal)
    is_small = builder.icmp_unsigned("<", magnitude, _I32(0x38800000))
    small = builder.bitcast(builder.select(is_small, magnitude, _I32(0)), _F32)
    steps = build_nearest(builder, builder.fmul(small, _F32(2.0**40)))
    small = builder.lshr(builder.add(steps, noise), _I32(16))
    sign = builder.and_(builder.lshr(bits, _I32(16)), _I32(0x8000))
    half = builder.trunc(builder.or_(sign, builder.select(is_small, small, normal)), _I16)
    return builder.select(builder.fcmp_unordered("uno", value, value), _I16(0x7E00), half)


_to_bfloat16 = expression(types.uint16, (types.float32, types.uint16), _build_to_bfloat16)
_to_float16 = expression(types.int16, (types.float32, types.uint16), _build_to_float16)


@jit
def _mean_tile(rows, stride, count, start, stop, factor, sums, tile):  # type: ignore[no-untyped-def]
    """The mean of values `start` to `stop` of all rows, in `tile`."""
    sums[:] = 0.0
    for row in range(count):
        at = row * stride
        widen(rows, at + start, at + stop, tile)
        for i in range(TILE):
            sums[i] += np.float64(tile[i])
    for i in range(TILE):
        tile[i] = np.float32(sums[i] * factor)


@jit
def _mean(rows, stride, count, out, factor):  # type: ignore[no-untyped-def]
    sums, tile = np.empty(TILE, np.float64), np.empty(TILE, np.float32)
    for at in range(0, len(out), TILE):
        stop = min(at + TILE, len(out))
        _mean_tile(rows, stride, count, at, stop, factor, sums, tile)
        out[at:stop] = tile[: stop - at]


@jit
def _rounded_mean(rows, stride, count, out, factor, key, counter):  # type: ignore[no-untyped-def]
    sums, tile = np.empty(TILE, np.float64), np.empty(TILE, np.float32)
    words = np.empty(TILE // 2, np.uint32)
    dither = words.view(np.uint16)
    for at in range(0, len(out), TILE):
        stop = min(at + TILE, len(out))
        _mean_tile(rows, stride, count, at, stop, factor, sums, tile)
        random_tile(words, -(-(stop - at) // 8) * 8, np.uint32(counter + at // 8), key)
        narrow(tile, dither, out[at:stop])


def narrow(tile: Any, dither: Any, out: Any) -> None:
    """Round the values of a tile to 16 bits by their random bits."""


@overload(narrow)
def _narrow_for(tile, dither, out):  # type: ignore[no-untyped-def]
    """By the type of `out`: uint16 holds bfloat16, int16 holds float16."""
    if out.dtype == types.uint16:

        def store(tile, dither, out):  # type: ignore[no-untyped-def]
            for i in range(len(out)):
                out[i] = _to_bfloat16(tile[i], dither[i])

    else:

        def store(tile, dither, out):  # type: ignore[no-untyped-def]
            for i in range(len(out)):
                out[i] = _to_float16(tile[i], dither[i])

    return store


def mean_floats(rows: Tensor, out: Tensor, *, key: Key, offset: int = 0) -> None:
    if out.numel() == 0:
        return
    count, stride = rows.shape[0], rows.stride(0)
    flat = array(rows.as_strided(((count - 1) * stride + out.numel(),), (1,)))
    values, words, factor = array(out), key_words(key), 1 / count

    def run(start: int, stop: int) -> None:
        part = values[start:stop]
        if out.dtype == torch.float32:
            _mean(flat[start:], stride, count, part, factor)
        else:
            counter = (offset + start) // 8
            _rounded_mean(flat[start:], stride, count, part, factor, words, counter)

    over_threads(out.numel(), TILE, run)
