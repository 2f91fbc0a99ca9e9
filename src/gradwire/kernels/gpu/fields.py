"""Codes in fields that the network may add, in Triton."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import layout
from gradwire.kernels.formats.fields import Dither, zero_of
from gradwire.kernels.gpu.blocks import (
    all_given_scales,
    block_scales_at,
    spread,
    stochastic_code,
    tile_scales,
)
from gradwire.kernels.gpu.compiler import jit, kernel, launch, single, static, stream
from gradwire.kernels.gpu.pack import load_fields, padded, per_word, words_of
from gradwire.kernels.gpu.scales import block_scales
from gradwire.kernels.gpu.tiles import (
    GROUP,
    ROWS,
    TILE,
    block_of,
    by_groups,
    half_word,
    half_words,
    num_groups,
    put_eighth,
    skip,
    stride_of,
    values_left,
)
from gradwire.key import Key

_TINY = tl.constexpr(layout.MIN_SCALE)


@static
def _at_once(width: int) -> int:
    """The tiles of which threads have up to four words each."""
    return min(8, 512 // int(padded(words_of(width))))


@kernel
def _quantize_fields(
    x, scales, words, numel, top, tiles, counter, shift, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Threads have whole words: field q of word k is value q W + k of its tile.

    So no code changes threads, but every value takes an output of Philox for itself.
    """
    left = values_left(numel)
    k = tl.arange(0, padded(words_of(WIDTH)))[None, :]
    for part in range(ROWS // _at_once(WIDTH)):
        row = part * _at_once(WIDTH) + tl.arange(0, _at_once(WIDTH))[:, None]
        stride = stride_of(row, left)
        count = (8 * stride + per_word(WIDTH) - 1) // per_word(WIDTH)
        word = k * tl.zeros_like(row)
        for q in range(per_word(WIDTH)):
            value = q * count + k  # where k is too large, it is one of another word
            inside, at = value < 8 * stride, row * TILE + value
            values = tl.load(skip(x, GROUP) + at, mask=inside & (at < left), other=0.0)
            if SPAN == TILE:
                scale = tile_scales(scales, tiles, row, left)
            else:
                scale = block_scales_at(scales, at, inside, SPAN)
            dither = half_word(counter, row, value, stride, c1, c2, c3, k0, k1)
            code = stochastic_code(values.to(tl.float32), scale, top, dither, shift)
            word |= tl.where(inside, code, 0) << (q * WIDTH)
        start = skip(words, ROWS * words_of(WIDTH)) + row * words_of(WIDTH)
        tl.store(start + k, word, mask=k < count)


def quantize_fields(
    x: Tensor,
    scales: Tensor,
    words: Tensor,
    *,
    levels: float,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
    shift: int = 0,
) -> None:
    if norm is not None:
        block_scales(x, scales, block=block, norm=norm)
    launch(
        _quantize_fields, num_groups(x.numel()), x, scales, words, x.numel(),
        int(levels * (1 << 16)), shift=shift, **stream(key, offset), WIDTH=width, **block_of(block),
    )  # fmt: skip


@jit
def put_levels(
    stride, left, load: tl.constexpr, codes, scales, out, zero, ratio, tiles, times, shift, centre,
    counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr, DITHER: tl.constexpr,
):  # fmt: skip
    """Write, or add, ratio * scale * (level - zero), moved by the dither if there is one."""
    levels = load(codes, stride, left, WIDTH)
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
    by_groups(put_levels, numel, (
        load_fields, words, scales, out, zero, ratio, tiles, times, shift, centre,
        counter, c1, c2, c3, k0, k1, WIDTH, SPAN, ADD, DITHER,
    ))  # fmt: skip


def dequantize_fields(
    scales: Tensor,
    words: Tensor,
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
    zero, dither = zero_of(levels, terms, dither)
    launch(
        _dequantize_fields, num_groups(out.numel()), scales, words, out, out.numel(),
        zero=zero, ratio=single(weight / levels), **dither_words(dither),
        WIDTH=width, ADD=accumulate, **block_of(block),
    )  # fmt: skip


def dither_words(dither: Dither | None) -> dict[str, Any]:
    """A dither as kernels take it."""
    given = dither or Dither(Key(), 0, 0, 0, 0)
    return {
        "times": given.times & 0xFFFF, "shift": given.shift & 0xFFFF, "centre": given.centre,
        **stream(given.key, given.offset), "DITHER": dither is not None,
    }  # fmt: skip
