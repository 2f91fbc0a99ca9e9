"""Stochastic rounding to levels of a scale in Triton."""

from __future__ import annotations

from collections.abc import Sequence

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.gpu.blocks import TINY, all_given_scales, scales_of, spread, stochastic_codes
from gradwire.kernels.gpu.compiler import addresses, jit, kernel, launch, single, stream
from gradwire.kernels.gpu.debt import NO_DEBT, load_residual, load_source, owe
from gradwire.kernels.gpu.pack import load_packed, store_packed
from gradwire.kernels.gpu.scales import tiles_to_measure
from gradwire.kernels.gpu.tiles import (
    GROUP,
    block_of,
    by_groups,
    half_words,
    num_groups,
    put_eighth,
    skip,
    store_eighth,
    sums_of,
)
from gradwire.key import Key


@jit
def _quantize_group(
    stride, left, x, scales, codes, owed, residual, shares, levels, ratio, top, tiles, counter,
    shift, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr,
    DITHERED: tl.constexpr,
):  # fmt: skip
    before = load_residual(residual, stride, left)
    values = load_source(x, before, shares, stride, left)
    scale = scales_of(values, scales, tiles, stride, left, SPAN, TILES, L2)
    dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    packed = stochastic_codes(values, scale, top, dithers, shift)
    store_packed(skip(codes, GROUP // 8 * WIDTH), packed, stride, left, WIDTH)
    if owed is not None:
        rest = _not_said(values, packed, scale, dithers, levels, ratio, DITHERED)
        owe(owed, rest, before, shares, stride, left)


@jit
def _not_said(values, codes, scale, dithers, levels, ratio, DITHERED: tl.constexpr):
    """What codes do not say of values, by eighths; `ratio` is negative."""
    rest = ()
    for s in tl.static_range(8):
        level, unit = codes[s] - levels, scale[s]
        if DITHERED:
            level = (level << 17) - 2 * dithers[s] + 65535
            step = tl.div_rn(unit, levels.to(tl.float32) + tl.zeros_like(unit))
            unit = tl.where(unit <= TINY, 0.0, step)
        rest += (values[s] + level.to(tl.float32) * spread(unit * ratio),)
    return rest


@kernel
def _quantize(
    x, scales, codes, owed, residual, shares, numel, levels, ratio, top, tiles, counter, shift,
    c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr,
    DITHERED: tl.constexpr,
):  # fmt: skip
    by_groups(_quantize_group, numel, (
        x, scales, codes, owed, residual, shares, levels, ratio, top, tiles, counter, shift,
        c1, c2, c3, k0, k1, WIDTH, SPAN, TILES, L2, DITHERED,
    ))  # fmt: skip


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
    tiles = tiles_to_measure(x, scales, block, norm, debt)
    launch(
        _quantize, num_groups(x.numel()), x, scales, codes, *(debt or NO_DEBT), x.numel(),
        int(levels), -(2.0**-17) if dithered else single(-1 / levels), int(levels * (1 << 16)),
        shift=shift, **stream(key, offset), WIDTH=width, TILES=tiles, L2=norm == "l2",
        DITHERED=dithered and debt is not None, **block_of(block),
    )  # fmt: skip


@jit
def _dequantize_group(
    stride, left, scales, codes, out, levels, ratio, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    code = load_packed(skip(codes, GROUP // 8 * WIDTH), stride, left, WIDTH)
    scale = all_given_scales(scales, tiles, stride, left, SPAN)
    for s in tl.static_range(8):
        values = (code[s] - levels).to(tl.float32) * spread(scale[s] * ratio)
        put_eighth(skip(out, GROUP), values, stride, left, s, ADD)


@kernel
def _dequantize(
    scales, codes, out, numel, levels, ratio, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    by_groups(_dequantize_group, numel, (
        scales, codes, out, levels, ratio, tiles, WIDTH, SPAN, ADD,
    ))  # fmt: skip


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
    launch(
        _dequantize, num_groups(out.numel()), scales, codes, out, out.numel(), levels,
        single(weight / levels), WIDTH=width, ADD=accumulate, **block_of(block),
    )  # fmt: skip


@jit
def _mean_group(
    stride, left, scales, codes, peers, out, levels, ratio, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    means = _values_of(scales, codes, 0, stride, left, levels, ratio, tiles, WIDTH, SPAN, ALIGNED)
    for peer in range(1, peers):
        terms = _values_of(
            scales, codes, peer, stride, left, levels, ratio, tiles, WIDTH, SPAN, ALIGNED
        )  # fmt: skip
        means = sums_of(means, terms)
    for s in tl.static_range(8):
        store_eighth(skip(out, GROUP), means[s], stride, left, s)


@jit
def _values_of(
    scales, codes, peer, stride, left, levels, ratio, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """What one peer has sent, by eighths."""
    code_at, scale_at = tl.load(codes + peer), tl.load(scales + peer)
    if ALIGNED:
        code_at = tl.multiple_of(code_at, 16)
    code_at = skip(code_at.to(tl.pointer_type(tl.uint8)), GROUP // 8 * WIDTH)
    code = load_packed(code_at, stride, left, WIDTH)
    scale_at = scale_at.to(tl.pointer_type(tl.float32))
    scale = all_given_scales(scale_at, tiles, stride, left, SPAN)
    values = ()
    for s in tl.static_range(8):
        values += ((code[s] - levels).to(tl.float32) * spread(scale[s] * ratio),)
    return values


@kernel
def _dequantize_mean(
    scales, codes, out, peers, numel, levels, ratio, tiles,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    by_groups(_mean_group, numel, (
        scales, codes, peers, out, levels, ratio, tiles, WIDTH, SPAN, ALIGNED,
    ))  # fmt: skip


def dequantize_mean(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
) -> None:
    aligned = all(packed.data_ptr() % 16 == 0 for packed in codes)
    launch(
        _dequantize_mean, num_groups(out.numel()), addresses(scales), addresses(codes), out,
        len(scales), out.numel(), levels, single(1 / len(scales) / levels),
        WIDTH=width, ALIGNED=aligned, **block_of(block),
    )  # fmt: skip
