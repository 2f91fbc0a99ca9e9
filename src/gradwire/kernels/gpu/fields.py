"""Codes in fields that the network may add, in Triton."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import layout
from gradwire.kernels.formats.fields import Dither
from gradwire.kernels.gpu.blocks import all_given_scales, scales_of, spread, stochastic_codes
from gradwire.kernels.gpu.compiler import jit, kernel, launch, single, stream
from gradwire.kernels.gpu.pack import load_fields, store_fields, words_of
from gradwire.kernels.gpu.scales import tiles_to_measure
from gradwire.kernels.gpu.tiles import (
    EIGHTH,
    GROUP,
    ROWS,
    block_of,
    half_words,
    is_whole,
    load_eighths,
    num_groups,
    put_eighth,
    ragged,
    skip,
)
from gradwire.key import Key

_TINY = tl.constexpr(layout.MIN_SCALE)


@jit
def _quantize_group(
    x, scales, words, stride, left, top, tiles, counter, shift, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    values = load_eighths(skip(x, GROUP), stride, left)
    scale = scales_of(values, scales, tiles, stride, left, SPAN, TILES, L2)
    dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    codes = stochastic_codes(values, scale, top, dithers, shift)
    store_fields(skip(words, ROWS * words_of(WIDTH)), codes, stride, left, WIDTH)


@kernel
def _quantize_fields(
    x, scales, words, numel, top, tiles, counter, shift, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr,
):  # fmt: skip
    if is_whole(numel):
        _quantize_group(
            x, scales, words, EIGHTH, None, top, tiles, counter, shift, c1, c2, c3, k0, k1,
            WIDTH, SPAN, TILES, L2,
        )  # fmt: skip
    else:
        stride, left = ragged(numel)
        _quantize_group(
            x, scales, words, stride, left, top, tiles, counter, shift, c1, c2, c3, k0, k1,
            WIDTH, SPAN, TILES, L2,
        )  # fmt: skip


def quantize_fields(
    x: Tensor,
    scales: Tensor,
    words: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
    shift: int = 0,
) -> None:
    launch(
        _quantize_fields, num_groups(x.numel()), x, scales, words, x.numel(), levels << 16,
        shift=shift, **stream(key, offset), WIDTH=width, L2=norm == "l2",
        TILES=tiles_to_measure(x, scales, block, norm), **block_of(block),
    )  # fmt: skip


@jit
def put_levels(
    levels, scales, out, stride, left, zero, ratio, tiles, times, shift, centre, counter,
    c1, c2, c3, k0, k1, SPAN: tl.constexpr, ADD: tl.constexpr, DITHER: tl.constexpr,
):  # fmt: skip
    """Write, or add, ratio * scale * (level - zero), moved by the dither if there is one."""
    scale = all_given_scales(scales, tiles, stride, left, SPAN)
    if DITHER:
        dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    for s in tl.static_range(8):
        level, unit = (levels[s] - zero).to(tl.float32), scale[s] * ratio
        if DITHER:
            unit = tl.where(scale[s] <= _TINY, 0.0, unit)
            drawn = (times * dithers[s] + shift) & 0xFFFF
            level += (centre - 2 * drawn).to(tl.float32) * 2.0**-17
        put_eighth(skip(out, GROUP), level * spread(unit), stride, left, s, ADD)


@kernel
def _dequantize_fields(
    scales, words, out, numel, zero, ratio, tiles, times, shift, centre, counter,
    c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr, DITHER: tl.constexpr,
):  # fmt: skip
    start = skip(words, ROWS * words_of(WIDTH))
    if is_whole(numel):
        put_levels(
            load_fields(start, EIGHTH, None, WIDTH), scales, out, EIGHTH, None, zero, ratio,
            tiles, times, shift, centre, counter, c1, c2, c3, k0, k1, SPAN, ADD, DITHER,
        )  # fmt: skip
    else:
        stride, left = ragged(numel)
        put_levels(
            load_fields(start, stride, left, WIDTH), scales, out, stride, left, zero, ratio,
            tiles, times, shift, centre, counter, c1, c2, c3, k0, k1, SPAN, ADD, DITHER,
        )  # fmt: skip


def dequantize_fields(
    scales: Tensor,
    words: Tensor,
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    terms: int = 1,
    weight: float = 1.0,
    accumulate: bool = False,
    dither: Dither | None = None,
) -> None:
    launch(
        _dequantize_fields, num_groups(out.numel()), scales, words, out, out.numel(),
        zero=terms * levels, ratio=single(weight / levels), **dither_words(dither),
        WIDTH=width, ADD=accumulate, **block_of(block),
    )  # fmt: skip


def dither_words(dither: Dither | None) -> dict[str, Any]:
    """A dither as kernels take it."""
    given = dither or Dither(Key(), 0, 0, 0, 0)
    return {
        "times": given.times & 0xFFFF, "shift": given.shift & 0xFFFF, "centre": given.centre,
        **stream(given.key, given.offset), "DITHER": dither is not None,
    }  # fmt: skip
