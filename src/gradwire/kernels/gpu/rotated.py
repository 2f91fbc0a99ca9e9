"""Rotated values in Triton: quantizing reads a vector once, and so does the mean of several."""

from __future__ import annotations

from collections.abc import Sequence

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import rotation
from gradwire.kernels.gpu.compiler import (
    addresses,
    jit,
    kernel,
    launch,
    roomy_kernel,
    single,
    stream,
)
from gradwire.kernels.gpu.gaussian import codes_of, minus_zeros, values_of
from gradwire.kernels.gpu.pack import store_packed
from gradwire.kernels.gpu.rotation import (
    eighths,
    from_eighths,
    inverse,
    load_blocks,
    num_values,
    padded_rows,
    rotate,
    rotate_back,
    sizes_of,
    store_blocks,
    sum_of,
)
from gradwire.kernels.gpu.tiles import (
    EIGHTH,
    GROUP,
    TILE,
    is_whole,
    num_groups,
    ragged,
    skip,
    sums_of,
)
from gradwire.key import Key

_NAN = tl.constexpr(float("nan"))
_INF_BITS = tl.constexpr(0x7F800000)
_CEILING, _LARGEST = tl.constexpr(rotation.CEILING), tl.constexpr(rotation.LARGEST)
_BACK = tl.constexpr(4 / rotation.MARGIN)


@jit
def _near_one(values):
    """Blocks over a power of two that brings them near 1, that power, and: are they finite?"""
    top = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1, keep_dims=True)
    finite = top < _INF_BITS
    values = tl.minimum(tl.maximum(tl.where(finite, values, 0.0), -_CEILING), _CEILING)
    exponent = tl.minimum(tl.maximum(top >> 23, 1), 253)
    power = (exponent << 23).to(tl.float32, bitcast=True)
    return values * inverse(power), power, finite


@jit
def _quantize_group(
    x, scales, codes, stride, left, counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    values, power, finite = _near_one(load_blocks(skip(x, GROUP), left, BLOCK))
    square, size = sum_of(values * values), sizes_of(left, BLOCK)
    y = rotate(values, left, counter, c1, c2, c3, k0, k1)
    wide = (square * (size * 0.0625)).to(tl.float64)
    deviation = tl.sqrt(wide).to(tl.float32)  # bits: of 53 bits, rounded once more, as of 24
    code, products = codes_of(y, deviation, WIDTH)
    scale = tl.div_rn(square * (size * 0.25), sum_of(products)) * power
    scale = tl.where(square > 0, tl.minimum(scale, _LARGEST), 0.0)
    own = skip(scales, GROUP // BLOCK) + tl.arange(0, GROUP // BLOCK)[:, None]
    inside = num_values(GROUP if left is None else left, BLOCK) > 0
    tl.store(own, tl.where(finite, scale, _NAN), mask=inside)
    store_packed(skip(codes, GROUP // 8 * WIDTH), eighths(code), stride, left, WIDTH)


@kernel
def _quantize_rotated(
    x, scales, codes, numel, counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if is_whole(numel):
        _quantize_group(
            x, scales, codes, EIGHTH, None, counter, c1, c2, c3, k0, k1, WIDTH, BLOCK
        )  # fmt: skip
    else:
        _, left = ragged(numel)
        stride = padded_rows(left, BLOCK)
        _quantize_group(
            x, scales, codes, stride, left, counter, c1, c2, c3, k0, k1, WIDTH, BLOCK
        )  # fmt: skip


def quantize_rotated(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    bits: int,
    block: int,
    key: Key,
    offset: int = 0,
) -> None:
    launch(
        _quantize_rotated, num_groups(x.numel()), x, scales, codes, x.numel(),
        **stream_of_tiles(key, offset), WIDTH=bits, BLOCK=block,
    )  # fmt: skip


def stream_of_tiles(key: Key, offset: int) -> dict[str, int]:
    """The random stream of a key, counted in tiles."""
    return stream(key, 8 * (offset // TILE.value))


@jit
def _dequantize_group(
    scales, codes, out, stride, left, rows_left, peers, ratio, counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    total = minus_zeros()
    for peer in range(peers):
        terms = values_of(scales, codes, peer, stride, rows_left, ratio, WIDTH, BLOCK, ALIGNED)
        total = sums_of(total, terms)
    y = rotate_back(from_eighths(total, BLOCK), left, counter, c1, c2, c3, k0, k1)
    values = y * (inverse(sizes_of(left, BLOCK)) * _BACK)
    values = tl.minimum(tl.maximum(values, -_LARGEST), _LARGEST)
    if ADD:
        values += load_blocks(skip(out, GROUP), left, BLOCK)
    store_blocks(skip(out, GROUP), tl.where(y == y, values, _NAN), left, BLOCK)


@roomy_kernel
def _dequantize_rotated(
    scales, codes, out, numel, peers, ratio, counter, c1, c2, c3, k0, k1,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    if is_whole(numel):
        _dequantize_group(
            scales, codes, out, EIGHTH, None, None, peers, ratio, counter, c1, c2, c3, k0, k1,
            WIDTH, BLOCK, ADD, ALIGNED,
        )  # fmt: skip
    else:
        _, left = ragged(numel)
        stride = padded_rows(left, BLOCK)
        rows_left = tl.sum(stride) * 8  # bits: integers
        _dequantize_group(
            scales, codes, out, stride, left, rows_left, peers, ratio, counter, c1, c2, c3, k0, k1,
            WIDTH, BLOCK, ADD, ALIGNED,
        )  # fmt: skip


def dequantize_rotated(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    out: Tensor,
    *,
    bits: int,
    block: int,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    aligned = all(packed.data_ptr() % 16 == 0 for packed in codes)
    launch(
        _dequantize_rotated, num_groups(out.numel()), addresses(scales), addresses(codes), out,
        out.numel(), len(scales), single(weight * rotation.MARGIN), **stream_of_tiles(key, offset),
        WIDTH=bits, BLOCK=block, ADD=accumulate, ALIGNED=aligned,
    )  # fmt: skip
