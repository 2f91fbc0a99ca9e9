"""Subtractive dither in Triton."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import layout
from gradwire.kernels.gpu.blocks import all_given_scales, spread
from gradwire.kernels.gpu.compiler import jit, kernel, launch, single, stream
from gradwire.kernels.gpu.pack import load_packed, store_packed
from gradwire.kernels.gpu.tiles import (
    GROUP,
    block_of,
    by_groups,
    fixed_point,
    half_words,
    load_eighths,
    num_groups,
    put_eighth,
    skip,
)
from gradwire.key import Key

_HUGE, _TOP = tl.constexpr(layout.MAX_SCALE), tl.constexpr(float(127 << 16))


@jit
def dithered_levels(
    x, units, tiles, stride, left, counter, c1, c2, c3, k0, k1, SPAN: tl.constexpr
):  # fmt: skip
    """Eighths of levels from -127 to 127: values in steps to 16 fraction bits, then floored."""
    values = load_eighths(skip(x, GROUP), stride, left)
    unit = all_given_scales(units, tiles, stride, left, SPAN)
    dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    levels = ()
    for s in tl.static_range(8):
        factor = tl.div_rn(tl.full(unit[s].shape, 65536.0, tl.float32), unit[s])
        top = tl.minimum(factor * _HUGE, _TOP)
        level = (fixed_point(values[s] * spread(factor), spread(top)) + dithers[s]) >> 16
        levels += (tl.where(spread(unit[s] > 0), level, 0),)
    return levels


@jit
def _quantize_group(
    stride, left, x, units, codes, zero, tiles, counter, c1, c2, c3, k0, k1,
    SPAN: tl.constexpr,
):  # fmt: skip
    levels = dithered_levels(
        x, units, tiles, stride, left, counter, c1, c2, c3, k0, k1, SPAN
    )  # fmt: skip
    codes_of = ()
    for s in tl.static_range(8):
        codes_of += ((levels[s] + zero) & 0xFF,)
    store_packed(skip(codes, GROUP), codes_of, stride, left, 8)


@kernel
def _quantize_dithered(
    x, units, codes, numel, zero, tiles, counter, c1, c2, c3, k0, k1,
    SPAN: tl.constexpr,
):  # fmt: skip
    by_groups(_quantize_group, numel, (
        x, units, codes, zero, tiles, counter, c1, c2, c3, k0, k1, SPAN,
    ))  # fmt: skip


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
    launch(
        _quantize_dithered, num_groups(x.numel()), x, units, codes,
        x.numel(), zero, **stream(key, offset), **block_of(block),
    )  # fmt: skip


@jit
def _dequantize_group(
    stride, left, units, codes, out, zero, ratio, tiles, counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    code = load_packed(skip(codes, GROUP // 8 * WIDTH), stride, left, WIDTH)
    unit = all_given_scales(units, tiles, stride, left, SPAN)
    dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    for s in tl.static_range(8):
        level = ((code[s] - zero + 128) & 0xFF) - 128
        exact = ((level << 17) - 2 * dithers[s] + 65535).to(tl.float32)
        put_eighth(skip(out, GROUP), exact * spread(unit[s] * ratio), stride, left, s, ADD)


@kernel
def _dequantize_dithered(
    units, codes, out, numel, zero, ratio, tiles, counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    by_groups(_dequantize_group, numel, (
        units, codes, out, zero, ratio, tiles, counter, c1, c2, c3, k0, k1, WIDTH, SPAN, ADD,
    ))  # fmt: skip


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
    launch(
        _dequantize_dithered, num_groups(out.numel()), units, codes,
        out, out.numel(), zero, single(weight * 2.0**-17), **stream(key, offset),
        WIDTH=width, ADD=accumulate, **block_of(block),
    )  # fmt: skip
