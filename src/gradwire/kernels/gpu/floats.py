"""Means of floats in Triton."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from gradwire.kernels.gpu.compiler import jit, kernel, launch, stream
from gradwire.kernels.gpu.tiles import (
    GROUP,
    by_groups,
    half_words,
    load_eighth,
    nearest,
    num_groups,
    skip,
    store_eighth,
    sums_of,
)
from gradwire.key import Key

_SUBNORMAL, _WHOLE = tl.constexpr(2.0**-14), tl.constexpr(8388608.0)
_NARROW = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@jit
def _load_wide(x, stride, left):
    values = ()
    for s in tl.static_range(8):
        values += (load_eighth(x, stride, left, s).to(tl.float64),)
    return values


@jit
def _to_bfloat16(value, dither):
    """The bits of one of the two bfloat16 next to each value."""
    bits = value.to(tl.uint32, bitcast=True)
    rounded = ((bits + dither.to(tl.uint32)) >> 16).to(tl.int32)
    return tl.where(value == value, rounded, 0x7FC0)


@jit
def _to_float16(value, dither):
    """The bits of one of the two float16 next to each value; beyond the largest lies infinity."""
    bits = value.to(tl.int32, bitcast=True)
    normal = (((bits & 0x7FFFFFFF) + (dither >> 3)) >> 13) - (112 << 10)
    is_small = tl.abs(value) < _SUBNORMAL
    steps = tl.where(is_small, tl.abs(value), 0.0) * 2.0**40  # of 2^-24, with 16 more bits
    steps = tl.where(steps < _WHOLE, nearest(steps), steps.to(tl.int32))
    magnitude = tl.where(is_small, (steps + dither) >> 16, tl.minimum(normal, 0x7C00))
    return tl.where(value == value, ((bits >> 16) & 0x8000) | magnitude, 0x7E00)


@jit
def _mean_group(
    stride, left, x, out, count, apart, counter, c1, c2, c3, k0, k1, NARROW: tl.constexpr
):  # fmt: skip
    start = skip(x, GROUP)
    total = _load_wide(start, stride, left)
    for row in range(1, count):
        total = sums_of(total, _load_wide(start + row * tl.cast(apart, tl.int64), stride, left))
    if NARROW:
        dithers = half_words(counter, stride, left, c1, c2, c3, k0, k1)
    share = 1.0 / count.to(tl.float64)
    for s in tl.static_range(8):
        mean = ((total[s] + 0.0) * share).to(tl.float32)
        if NARROW == 1:
            mean = _to_bfloat16(mean, dithers[s]).to(tl.int16)
        if NARROW == 2:
            mean = _to_float16(mean, dithers[s]).to(tl.int16)
        store_eighth(skip(out, GROUP), mean, stride, left, s)


@kernel
def _mean_floats(
    x, out, numel, count, apart, counter, c1, c2, c3, k0, k1, NARROW: tl.constexpr
):  # fmt: skip
    by_groups(_mean_group, numel, (x, out, count, apart, counter, c1, c2, c3, k0, k1, NARROW))


def mean_floats(rows: Tensor, out: Tensor, *, key: Key, offset: int = 0) -> None:
    narrow = _NARROW[out.dtype]
    bits = out.view(torch.int16) if narrow else out
    launch(
        _mean_floats, num_groups(out.numel()), rows, bits, out.numel(), rows.shape[0],
        rows.stride(0), **stream(key, offset), NARROW=narrow,
    )  # fmt: skip
