"""Codes of a sign and an exponent in Triton."""

from __future__ import annotations

import math

import triton.language as tl
from torch import Tensor

from gradwire.kernels.gpu.blocks import all_given_scales, scales_of, spread
from gradwire.kernels.gpu.compiler import jit, kernel, launch, roomy_kernel, single, stream
from gradwire.kernels.gpu.pack import load_packed, store_packed
from gradwire.kernels.gpu.scales import tiles_to_measure
from gradwire.kernels.gpu.tiles import (
    GROUP,
    block_of,
    by_groups,
    half_words,
    load_eighths,
    nearest,
    num_groups,
    put_eighth,
    skip,
)
from gradwire.key import Key


@jit
def _code(value, inverse, finite, reach, dither, WIDTH: tl.constexpr):
    """The sign and the exponent of a share of the scale, in units of the least magnitude.

    The value is multiplied before anything else is done to it, so that Triton 3.7 leaves it in its
    thread: otherwise each thread computes the codes of a whole tile.
    """
    most: tl.constexpr = (1 << (WIDTH - 1)) - 1
    share = tl.where(finite, tl.minimum(tl.abs(value * inverse), 1.0) * reach, 0.0)
    power = ((share.to(tl.int32, bitcast=True) + 64 + (dither << 7)) >> 23) - 127
    least = (nearest(tl.minimum(share, 1.0) * 65536.0) + dither) >> 16
    code = tl.where(share >= 1, most - power, most * least)
    negative = (value.to(tl.int32, bitcast=True) < 0) & (code > 0)
    return tl.where(negative, code + (1 << (WIDTH - 1)), code)


@jit
def _quantize_group(
    stride, left, x, scales, codes, reach, tiles, counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    values = load_eighths(skip(x, GROUP), stride, left)
    scale = scales_of(values, scales, tiles, stride, left, SPAN, TILES, L2)
    dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    packed = ()
    for s in tl.static_range(8):
        inverse = tl.div_rn(tl.full(scale[s].shape, 1.0, tl.float32), scale[s])
        finite = spread(scale[s] == scale[s])
        packed += (_code(values[s], spread(inverse), finite, reach, dithers[s], WIDTH),)
    store_packed(skip(codes, GROUP // 8 * WIDTH), packed, stride, left, WIDTH)


@kernel
def _exp_quantize(
    x, scales, codes, numel, reach, tiles, counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    by_groups(_quantize_group, numel, (
        x, scales, codes, reach, tiles, counter, c1, c2, c3, k0, k1, WIDTH, SPAN, TILES, L2,
    ))  # fmt: skip


def exp_quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    width: int,
    headroom: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
) -> None:
    reach = math.ldexp(1, (1 << width - 1) - 2 - headroom)
    launch(
        _exp_quantize, num_groups(x.numel()), x, scales, codes, x.numel(), reach,
        **stream(key, offset), WIDTH=width, L2=norm == "l2",
        TILES=tiles_to_measure(x, scales, block, norm), **block_of(block),
    )  # fmt: skip


@jit
def _dequantize_group(
    stride, left, scales, codes, out, headroom, ratio, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    most: tl.constexpr = (1 << (WIDTH - 1)) - 1
    code = load_packed(skip(codes, GROUP // 8 * WIDTH), stride, left, WIDTH)
    scale = all_given_scales(scales, tiles, stride, left, SPAN)
    for s in tl.static_range(8):
        exponent = code[s] & most
        power = ((128 + headroom - exponent) << 23).to(tl.float32, bitcast=True)
        level = tl.where(exponent > 0, tl.where(code[s] > most, -power, power), 0.0)
        put_eighth(skip(out, GROUP), level * spread(scale[s] * ratio), stride, left, s, ADD)


@roomy_kernel
def _exp_dequantize(
    scales, codes, out, numel, headroom, ratio, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    by_groups(_dequantize_group, numel, (
        scales, codes, out, headroom, ratio, tiles, WIDTH, SPAN, ADD,
    ))  # fmt: skip


def exp_dequantize(
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    width: int,
    headroom: int,
    block: int | None,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    launch(
        _exp_dequantize, num_groups(out.numel()), scales, codes, out, out.numel(), headroom,
        single(weight), WIDTH=width, ADD=accumulate, **block_of(block),
    )  # fmt: skip


@jit
def _sum(a, b, dither, WIDTH: tl.constexpr):
    """The code of a sum, rounded at random."""
    most: tl.constexpr = (1 << (WIDTH - 1)) - 1
    low, high = tl.minimum(a & most, b & most), tl.maximum(a & most, b & most)
    larger = tl.where((a & most) <= (b & most), a, b)
    alike = (a > most) == (b > most)
    rare = high - low - tl.where(alike, 0, 1)
    drawn = dither.to(tl.uint32) << tl.minimum(tl.maximum(rare, 0), 16).to(tl.uint32)
    move = (rare <= 16) & (drawn < 65536)
    total = larger + tl.where(move, tl.where(alike, -1, 1), 0)
    total = tl.where((rare < 0), 0, total)
    return tl.where((a & most) == 0, b, tl.where((b & most) == 0, a, total))


@jit
def _reduce_group(stride, left, into, term, counter, c1, c2, c3, k0, k1, WIDTH: tl.constexpr):
    a = load_packed(skip(into, GROUP // 8 * WIDTH), stride, left, WIDTH)
    b = load_packed(skip(term, GROUP // 8 * WIDTH), stride, left, WIDTH)
    dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    total = ()
    for s in tl.static_range(8):
        total += (_sum(a[s], b[s], dithers[s], WIDTH),)
    store_packed(skip(into, GROUP // 8 * WIDTH), total, stride, left, WIDTH)


@kernel
def _exp_reduce(into, term, numel, counter, c1, c2, c3, k0, k1, WIDTH: tl.constexpr):
    by_groups(_reduce_group, numel, (into, term, counter, c1, c2, c3, k0, k1, WIDTH))


def exp_reduce(into: Tensor, term: Tensor, *, width: int, key: Key, offset: int = 0) -> None:
    numel = 8 * into.numel() // width
    launch(
        _exp_reduce, num_groups(numel), into, term, numel, **stream(key, offset), WIDTH=width,
    )  # fmt: skip
