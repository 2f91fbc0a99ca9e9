"""Rotated values to codes and back in Triton: the levels that are best for N(0, 1)."""

from __future__ import annotations

import triton.language as tl

from gradwire.kernels.formats import rotation
from gradwire.kernels.gpu.blocks import given_scales
from gradwire.kernels.gpu.compiler import jit, single, static
from gradwire.kernels.gpu.pack import load_packed
from gradwire.kernels.gpu.tiles import EIGHTH, GROUP, ROWS, TILE, skip

_INF, _NAN = tl.constexpr(float("inf")), tl.constexpr(float("nan"))
_LEVELS = {width: [single(level) for level in levels] for width, levels in rotation.LEVELS.items()}
_THRESHOLDS = {width: [single(bound) for bound in rotation.thresholds(width)] for width in _LEVELS}


@static
def _level_at(width: int, k: int) -> float:
    return _LEVELS[width][k]


@static
def _threshold_at(width: int, k: int) -> float:
    return _THRESHOLDS[width][k]


@jit
def codes_of(y, deviation, WIDTH: tl.constexpr):
    """Codes of rotated values, and |y| q."""
    magnitude = tl.abs(y)
    index, level = (y.to(tl.int32, bitcast=True) >> 31) & (1 << (WIDTH - 1)), _level_at(WIDTH, 0)
    for k in tl.static_range((1 << (WIDTH - 1)) - 1):
        above = magnitude > deviation * _threshold_at(WIDTH, k)
        index += above.to(tl.int32)
        level = tl.where(above, _level_at(WIDTH, k + 1), level)
    return index, magnitude * level


@jit
def _level(index, WIDTH: tl.constexpr):
    """The positive level of a code, bit by bit."""
    levels = ()
    for k in tl.static_range(1 << (WIDTH - 1)):
        levels += (_level_at(WIDTH, k),)
    for bit in tl.static_range(WIDTH - 1):
        is_set, chosen = ((index >> bit) & 1) == 1, ()
        for i in tl.static_range(1 << (WIDTH - 2 - bit)):
            chosen += (tl.where(is_set, levels[2 * i + 1], levels[2 * i]),)
        levels = chosen
    return levels[0]


@jit
def values_of(
    scales, codes, peer, stride, rows_left, ratio,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """What one peer has sent, by eighths, NaN where its scale is not finite."""
    code_at, scale_at = tl.load(codes + peer), tl.load(scales + peer)
    if ALIGNED:
        code_at = tl.multiple_of(code_at, 16)
    code_at = skip(code_at.to(tl.pointer_type(tl.uint8)), GROUP // 8 * WIDTH)
    code = load_packed(code_at, stride, rows_left, WIDTH)
    scale_at = scale_at.to(tl.pointer_type(tl.float32))
    scale = given_scales(scale_at, BLOCK // TILE, stride, rows_left, 0, TILE)
    unit = tl.where(tl.abs(scale) < _INF, scale, _NAN) * ratio
    values = ()
    for s in tl.static_range(8):
        size = (unit * _level(code[s], WIDTH)).to(tl.int32, bitcast=True)
        values += ((size ^ (code[s] >> (WIDTH - 1) << 31)).to(tl.float32, bitcast=True),)
    return values


@jit
def minus_zeros():
    """What may be added to anything; tl.full would make it plus zero."""
    zero = tl.full((ROWS, EIGHTH), -(1 << 31), tl.int32).to(tl.float32, bitcast=True)
    return (zero, zero, zero, zero, zero, zero, zero, zero)
