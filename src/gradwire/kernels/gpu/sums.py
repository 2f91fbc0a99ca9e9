"""Sums of packed codes in Triton."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats.fields import Dither, zero_of
from gradwire.kernels.gpu.compiler import jit, kernel, launch, single
from gradwire.kernels.gpu.fields import dither_words, put_levels
from gradwire.kernels.gpu.pack import load_packed, store_packed
from gradwire.kernels.gpu.tiles import (
    GROUP,
    block_of,
    by_groups,
    num_groups,
    skip,
    sums_of,
)


@jit
def _add_group(
    stride, left, codes, total, terms, apart, WIDTH: tl.constexpr, TOTAL_WIDTH: tl.constexpr
):  # fmt: skip
    start = skip(codes, GROUP // 8 * WIDTH)
    sums = load_packed(start, stride, left, WIDTH)
    for term in range(1, terms):
        more = load_packed(start + term * tl.cast(apart, tl.int64), stride, left, WIDTH)
        sums = sums_of(sums, more)
    store_packed(skip(total, GROUP // 8 * TOTAL_WIDTH), sums, stride, left, TOTAL_WIDTH)


@kernel
def _add_packed(
    codes, total, numel, terms, apart, WIDTH: tl.constexpr, TOTAL_WIDTH: tl.constexpr
):  # fmt: skip
    by_groups(_add_group, numel, (codes, total, terms, apart, WIDTH, TOTAL_WIDTH))


def add_packed(codes: Tensor, total: Tensor, *, numel: int, width: int, total_width: int) -> None:
    launch(
        _add_packed, num_groups(numel), codes, total, numel, codes.shape[0], codes.stride(0),
        WIDTH=width, TOTAL_WIDTH=total_width,
    )  # fmt: skip


@jit
def _load_sums(total, stride, left, WIDTH: tl.constexpr):
    return load_packed(skip(total, GROUP // 8 * WIDTH), stride, left, WIDTH)


@kernel
def _dequantize_sum(
    scales, total, out, numel, zero, ratio, tiles, times, shift, centre, counter,
    c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, SPAN: tl.constexpr, ADD: tl.constexpr, DITHER: tl.constexpr,
):  # fmt: skip
    by_groups(put_levels, numel, (
        _load_sums, total, scales, out, zero, ratio, tiles, times, shift, centre, counter,
        c1, c2, c3, k0, k1, WIDTH, SPAN, ADD, DITHER,
    ))  # fmt: skip


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
    zero, dither = zero_of(levels, terms, dither)
    launch(
        _dequantize_sum, num_groups(out.numel()), scales, total, out, out.numel(),
        zero=zero, ratio=single(weight / levels), **dither_words(dither),
        WIDTH=width, ADD=accumulate, **block_of(block),
    )  # fmt: skip
