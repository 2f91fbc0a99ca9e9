"""Nested dithered quantization in Triton."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.gpu.blocks import all_given_scales, spread
from gradwire.kernels.gpu.compiler import jit, kernel, launch, single, stream
from gradwire.kernels.gpu.dithered import dithered_levels
from gradwire.kernels.gpu.pack import load_packed, store_packed
from gradwire.kernels.gpu.tiles import (
    GROUP,
    block_of,
    by_groups,
    half_words,
    load_eighth,
    num_groups,
    skip,
    store_eighth,
)
from gradwire.key import Key

_WHOLE = tl.constexpr(8388608.0)


@jit
def _quantize_group(
    stride, left, x, units, codes, tiles, counter, c1, c2, c3, k0, k1,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    levels = dithered_levels(
        x, units, tiles, stride, left, counter, c1, c2, c3, k0, k1, SPAN
    )  # fmt: skip
    places = ()
    for s in tl.static_range(8):
        places += ((levels[s] + RATIO // 2 + 128 * RATIO) % RATIO,)  # of what is not negative
    store_packed(skip(codes, GROUP // 8 * WIDTH), places, stride, left, WIDTH)


@kernel
def _quantize_nested(
    x, units, codes, numel, tiles, counter, c1, c2, c3, k0, k1,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    by_groups(_quantize_group, numel, (
        x, units, codes, tiles, counter, c1, c2, c3, k0, k1, RATIO, WIDTH, SPAN,
    ))  # fmt: skip


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
    launch(
        _quantize_nested, num_groups(x.numel()), x, units, codes, x.numel(),
        **stream(key, offset), RATIO=ratio, WIDTH=width, **block_of(block),
    )  # fmt: skip


@jit
def _rounded(x):
    """To the nearest whole number, ties to even; what is 2^23 or more is whole, or no number."""
    whole = (tl.abs(x) + _WHOLE) - _WHOLE
    return tl.where(tl.abs(x) < _WHOLE, tl.where(x < 0, -whole, whole), x)


@jit
def _add_group(
    stride, left, units, codes, total, part, alpha, share, inverse, tiles, counter, c1, c2, c3,
    k0, k1, RATIO: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    place = load_packed(skip(codes, GROUP // 8 * WIDTH), stride, left, WIDTH)
    unit = all_given_scales(units, tiles, stride, left, SPAN)
    dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    for s in tl.static_range(8):
        exact = ((place[s] - RATIO // 2 << 17) - 2 * dithers[s] + 65535).to(tl.float32) * 2.0**-17
        so_far = load_eighth(skip(total, GROUP), stride, left, s)
        y = so_far * part
        slope = tl.div_rn(tl.zeros_like(unit[s]) + alpha, unit[s])
        r = exact - y * spread(slope)
        value = y + (r - _rounded(r * inverse) * RATIO) * spread(unit[s] * alpha)
        added = tl.where(spread(unit[s] == 0), so_far, so_far + value * share)
        store_eighth(skip(total, GROUP), added, stride, left, s)


@kernel
def _add_nested(
    units, codes, total, numel, part, alpha, share, inverse, tiles, counter, c1, c2, c3, k0, k1,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    by_groups(_add_group, numel, (
        units, codes, total, part, alpha, share, inverse, tiles, counter, c1, c2, c3, k0, k1, RATIO,
        WIDTH, SPAN,
    ))  # fmt: skip


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
    launch(
        _add_nested, num_groups(total.numel()), units, codes, total, total.numel(),
        single(1 / (count * weight)), single(alpha), single(weight), single(1 / ratio),
        **stream(key, offset), RATIO=ratio, WIDTH=width, **block_of(block),
    )  # fmt: skip
