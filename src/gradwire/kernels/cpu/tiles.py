"""The inner loops that kernels share, on one tile of at most 512 values that stays in L1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import (
    as_bits,
    as_float,
    bf16_bits,
    clip,
    floor16,
    fp16_bits,
    level,
    nearest,
)
from gradwire.kernels.cpu.octets import float_pointer
from gradwire.kernels.formats.layout import TILE


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
            # s eeeee mmmmmmmmmm: shift into a float32's place and mend the exponent's bias, where
            # 31 is inf or NaN. Subnormals are counted in their steps: arithmetic on a subnormal
            # float32 takes processors a hundred cycles.
            source = x[start:stop]
            for i in range(stop - start):
                half = fp16_bits(source[i])
                body = half & np.int32(0x7FFF)
                bits = np.int32(body << np.int32(13)) + np.int32(112 << 23)
                bits |= np.int32(0x7F800000) if body >= np.int32(0x7C00) else np.int32(0)
                steps = as_bits(np.float32(np.int32(body)) * np.float32(2.0**-24))
                value = bits if body >= np.int32(0x0400) else steps
                sign = (half & np.int32(0x8000)) << np.int32(16)
                tile[i] = as_float(np.int32(value | sign))
            tile[stop - start :] = np.float32(0)

    return copy


def load_tile(x: Any, start: int, stop: int, room: Any) -> Any:
    """x[start:stop] as float32, as long as `room`: in place if it is all that, else in `room`.

    With a debt (`debt.py`) it is the sum with what is due, in `room`.
    """


@overload(load_tile)
def _load_tile_for(x, start, stop, room):  # type: ignore[no-untyped-def]
    if isinstance(x, types.BaseTuple):

        def load(x, start, stop, room):  # type: ignore[no-untyped-def]
            values, residual, share = x
            widen(values, start, stop, room)
            if len(residual):
                due = float_pointer(residual.ctypes.data + 4 * start)
                for i in range(stop - start):
                    room[i] += due[i] * share
            return room

    elif x.dtype == types.float32:

        def load(x, start, stop, room):  # type: ignore[no-untyped-def]
            if stop - start == len(room):
                return x[start:stop]
            widen(x, start, stop, room)
            return room

    else:

        def load(x, start, stop, room):  # type: ignore[no-untyped-def]
            widen(x, start, stop, room)
            return room

    return load


@jit
def round_block(values, dither, codes, scale, bias):  # type: ignore[no-untyped-def]
    """The scaled value to 16 fraction bits, plus 16 random ones, floored; `bias` is the most."""
    if np.isnan(scale):
        codes[:] = 0
        return
    top, bias = np.float32(bias), np.int32(bias)
    factor = top / scale
    for i in range(len(values)):
        codes[i] = floor16(nearest(clip(values[i] * factor, top)), bias, dither[i])


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
