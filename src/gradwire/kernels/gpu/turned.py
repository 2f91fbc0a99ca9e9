"""Values that are rotated and stay floats, in Triton."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import rotation
from gradwire.kernels.gpu.compiler import jit, kernel, launch
from gradwire.kernels.gpu.rotated import stream_of_tiles
from gradwire.kernels.gpu.rotation import (
    inverse,
    load_blocks,
    padded_rows,
    rotate,
    rotate_back,
    sizes_of,
    store_blocks,
)
from gradwire.kernels.gpu.tiles import GROUP, is_whole, num_groups, skip, values_left
from gradwire.key import Key

_NAN = tl.constexpr(float("nan"))
_INF_BITS = tl.constexpr(0x7F800000)
_CEILING, _LARGEST = tl.constexpr(rotation.CEILING), tl.constexpr(rotation.LARGEST)
_THERE = tl.constexpr(4 * rotation.SHORTER)
_LOW, _BACK = tl.constexpr(rotation.MARGIN / rotation.SHORTER), tl.constexpr(4 / rotation.MARGIN)


@jit
def _padded(left, BLOCK: tl.constexpr):
    """Of the last group, the values with the padding."""
    return tl.sum(padded_rows(left, BLOCK)) * 8  # bits: integers


@jit
def _where_finite(values):
    """The values of blocks, zeros for those that are not finite, and: which are?"""
    finite = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1, keep_dims=True) < _INF_BITS
    return tl.where(finite, values, 0.0), finite


@jit
def _rotate_group(x, out, left, into, tile, c1, c2, c3, k0, k1, BLOCK: tl.constexpr):
    values, finite = _where_finite(load_blocks(skip(x, GROUP), left, BLOCK))
    values = tl.minimum(tl.maximum(values, -_CEILING), _CEILING)
    values *= inverse(sizes_of(left, BLOCK)) * _THERE
    y = rotate(values, left, tile, c1, c2, c3, k0, k1)
    store_blocks(skip(out, GROUP), tl.where(finite, y, _NAN), into, BLOCK)


@kernel
def _rotate_blocks(x, out, numel, counter, c1, c2, c3, k0, k1, BLOCK: tl.constexpr):
    if is_whole(numel):
        _rotate_group(x, out, None, None, counter, c1, c2, c3, k0, k1, BLOCK)
    else:
        left = values_left(numel)
        _rotate_group(x, out, left, _padded(left, BLOCK), counter, c1, c2, c3, k0, k1, BLOCK)


def rotate_blocks(x: Tensor, out: Tensor, *, block: int, key: Key, offset: int = 0) -> None:
    launch(
        _rotate_blocks, num_groups(x.numel()), x, out, x.numel(), **stream_of_tiles(key, offset),
        BLOCK=block,
    )  # fmt: skip


@jit
def _rotate_group_back(
    y, out, left, given, tile, c1, c2, c3, k0, k1, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    values, finite = _where_finite(load_blocks(skip(y, GROUP), given, BLOCK))
    values = rotate_back(values * _LOW, left, tile, c1, c2, c3, k0, k1)
    values *= inverse(sizes_of(left, BLOCK)) * _BACK
    values = tl.minimum(tl.maximum(values, -_LARGEST), _LARGEST)
    if ADD:
        values += load_blocks(skip(out, GROUP), left, BLOCK)
    store_blocks(skip(out, GROUP), tl.where(finite, values, _NAN), left, BLOCK)


@kernel
def _rotate_blocks_back(
    y, out, numel, counter, c1, c2, c3, k0, k1, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    if is_whole(numel):
        _rotate_group_back(y, out, None, None, counter, c1, c2, c3, k0, k1, BLOCK, ADD)
    else:
        left = values_left(numel)
        given = _padded(left, BLOCK)
        _rotate_group_back(y, out, left, given, counter, c1, c2, c3, k0, k1, BLOCK, ADD)


def rotate_blocks_back(
    y: Tensor, out: Tensor, *, block: int, key: Key, offset: int = 0, accumulate: bool = False
) -> None:
    launch(
        _rotate_blocks_back, num_groups(out.numel()), y, out, out.numel(),
        **stream_of_tiles(key, offset), BLOCK=block, ADD=accumulate,
    )  # fmt: skip
