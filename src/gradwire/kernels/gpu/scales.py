"""The scales of blocks in Triton. The maximum is taken over bit patterns, as integers.

A block of up to a group is measured by the program that has it. A larger one takes several
launches: the first makes a total of every tile, others fold these, 16 to 1, in the order of the
halving tree, and the last makes the scale of what is left. Where a tree is padded, it is with
zeros, of which any number may be added.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.layout import MOST
from gradwire.kernels.gpu.blocks import (
    HUGE,
    NAN_BITS,
    TINY,
    own_scales,
    scale_of,
    store_scales,
    totals_of,
    tree,
    tree_of_tensors,
)
from gradwire.kernels.gpu.compiler import jit, kernel, launch
from gradwire.kernels.gpu.debt import load_residual, load_source
from gradwire.kernels.gpu.tiles import (
    EIGHTH,
    GROUP,
    ROWS,
    TILE,
    load_eighths,
    num_groups,
    rows,
    skip,
    values_left,
)

_FOLD, _LAST = tl.constexpr(16), tl.constexpr(1024)
_LEVELS = tl.constexpr(float(MOST))


@kernel
def _block_scales(
    x, residual, shares, scales, numel, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr
):
    left = values_left(numel)
    values = load_source(x, load_residual(residual, EIGHTH, left), shares, EIGHTH, left)
    out = skip(scales, GROUP // (SPAN * TILES))
    store_scales(out, own_scales(values, SPAN, TILES, L2), left, SPAN, TILES)


@kernel
def _tile_totals(x, residual, shares, totals, numel, L2: tl.constexpr):
    left = values_left(numel)
    values = load_source(x, load_residual(residual, EIGHTH, left), shares, EIGHTH, left)
    tl.store(skip(totals, ROWS) + rows(), totals_of(values, 0, TILE, L2), mask=rows() * TILE < left)


@kernel
def _block_moments(x, peaks, norms, numel, SPAN: tl.constexpr, TILES: tl.constexpr):
    left = values_left(numel)
    values = load_eighths(skip(x, GROUP), EIGHTH, left)
    out = skip(peaks, GROUP // (SPAN * TILES))
    store_scales(out, own_scales(values, SPAN, TILES, False), left, SPAN, TILES)
    out = skip(norms, GROUP // (SPAN * TILES))
    store_scales(out, own_scales(values, SPAN, TILES, True), left, SPAN, TILES)


@kernel
def _tile_moments(x, tops, squares, numel):
    left = values_left(numel)
    values = load_eighths(skip(x, GROUP), EIGHTH, left)
    inside = rows() * TILE < left
    tl.store(skip(tops, ROWS) + rows(), totals_of(values, 0, TILE, False), mask=inside)
    tl.store(skip(squares, ROWS) + rows(), totals_of(values, 0, TILE, True), mask=inside)


@jit
def _total(totals, numel, block, tiles, t):
    """The totals `t` of a block of so many tiles, and zeros where it has none."""
    at = block.to(tl.int64) * tiles + t
    return tl.load(totals + at, mask=(t < tiles) & (at < numel), other=0)


@kernel
def _fold_totals(totals, out, numel, tiles, size, L2: tl.constexpr):
    """Up to 16 totals of a block, `size` apart, to one."""
    block = tl.program_id(0) // (size // _LAST)
    i = tl.program_id(0) % (size // _LAST) * _LAST + tl.arange(0, _LAST)
    parts = ()
    for k in tl.static_range(_FOLD):
        parts += (_total(totals, numel, block, tiles, i + k * size),)
    tl.store(out + block.to(tl.int64) * size + i, tree_of_tensors(parts, _FOLD, L2))


@kernel
def _scale_of_totals(totals, scales, numel, tiles, L2: tl.constexpr):
    block = tl.program_id(0)
    parts = _total(totals, numel, block, tiles, tl.arange(0, _LAST))
    scale = scale_of(tree(tl.reshape(parts, (1, _LAST)), 1, 1, _LAST, L2), L2)
    tl.store(scales + block + tl.arange(0, 1)[:, None], scale)


@kernel
def _steps_of_moments(peaks, norms, ratios, steps, count, numel, size, places):
    """Blocks have `size` values, but for the last; `places` share a ratio."""
    b = tl.program_id(0).to(tl.int64) * _LAST + tl.arange(0, _LAST)
    inside = b < count
    peak = tl.load(peaks + b, mask=inside, other=1.0)
    norm = tl.load(norms + b, mask=inside, other=1.0)
    ratio = tl.load(ratios + b * size // places, mask=inside, other=1.0)
    own = tl.maximum(tl.minimum(numel - b * size, size), 1).to(tl.float32)
    root = tl.sqrt(own.to(tl.float64)).to(tl.float32)  # bits: of 53, rounded once more, as of 24
    least = tl.div_rn(peak, tl.full(peak.shape, _LEVELS, tl.float32))
    step = tl.minimum(tl.maximum(tl.div_rn(norm, root) * ratio, least), HUGE)
    bits = tl.where(peak <= TINY, 0.0, step).to(tl.int32, bitcast=True)
    step = tl.where(peak == peak, bits, NAN_BITS).to(tl.float32, bitcast=True)
    tl.store(steps + b, step, mask=inside)


def is_measured_at_once(block: int | None) -> bool:
    """Does a program have whole blocks?"""
    return block is not None and GROUP.value % block == 0


def block_scales(x: Tensor, scales: Tensor, *, block: int | None, norm: str) -> None:
    _measure_scales(x, None, scales, block, norm)


def _measure_scales(
    x: Tensor, debt: Debt | None, scales: Tensor, block: int | None, norm: str
) -> None:
    """The scales of `x` and of what is due."""
    numel, l2 = x.numel(), norm == "l2"
    due = (None, None) if debt is None else (debt.residual, debt.shares)
    if block is not None and is_measured_at_once(block):
        span, tiles = min(block, TILE.value), max(block // TILE.value, 1)
        launch(
            _block_scales, num_groups(numel), x, *due, scales, numel, SPAN=span, TILES=tiles, L2=l2
        )
        return
    totals = _room_for_tiles(x, l2)
    launch(_tile_totals, num_groups(numel), x, *due, totals, numel, L2=l2)
    _fold(totals, scales, block, l2)


def block_steps(
    x: Tensor, ratios: Tensor, steps: Tensor, *, segment: int | None, block: int | None
) -> None:
    peaks, norms = torch.empty_like(steps), torch.empty_like(steps)
    _measure_moments(x, peaks, norms, block)
    count, numel = steps.numel(), x.numel()
    launch(
        _steps_of_moments, -(-count // _LAST.value), peaks, norms, ratios, steps, count, numel,
        block or numel, segment or numel,
    )  # fmt: skip


def _measure_moments(x: Tensor, peaks: Tensor, norms: Tensor, block: int | None) -> None:
    """The largest magnitude and the l2 norm of each block, by one pass over its values."""
    numel = x.numel()
    if block is not None and is_measured_at_once(block):
        span, tiles = min(block, TILE.value), max(block // TILE.value, 1)
        launch(_block_moments, num_groups(numel), x, peaks, norms, numel, SPAN=span, TILES=tiles)
        return
    tops, squares = _room_for_tiles(x, False), _room_for_tiles(x, True)
    launch(_tile_moments, num_groups(numel), x, tops, squares, numel)
    _fold(tops, peaks, block, False)
    _fold(squares, norms, block, True)


def _room_for_tiles(x: Tensor, l2: bool) -> Tensor:
    count = -(-x.numel() // TILE.value)
    return x.new_empty(count, dtype=torch.float64 if l2 else torch.int32)


def _fold(totals: Tensor, scales: Tensor, block: int | None, l2: bool) -> None:
    """From totals of tiles to the scales of blocks."""
    tiles = totals.numel() if block is None else block // TILE.value
    while tiles > _LAST.value:
        size = max((1 << (tiles - 1).bit_length()) // _FOLD.value, _LAST.value)
        folded = totals.new_empty(scales.numel() * size)
        programs = folded.numel() // _LAST.value
        launch(_fold_totals, programs, totals, folded, totals.numel(), tiles, size, L2=l2)
        totals, tiles = folded, size
    launch(_scale_of_totals, scales.numel(), totals, scales, totals.numel(), tiles, L2=l2)


def tiles_to_measure(
    x: Tensor, scales: Tensor, block: int | None, norm: str | None, debt: Debt | None = None
) -> int:
    """Compute the scales that whole groups do not; the tiles of a block if they do, else 0.

    They do for the maximum, and blocks of up to a tile. Triton would have every thread compute what
    all of its row do if scales crossed rows, or were added up in the order of the tree.
    """
    if norm is None:
        return 0
    if block is None or norm == "l2" or block > TILE.value:
        _measure_scales(x, debt, scales, block, norm)
        return 0
    whole = x.numel() // GROUP.value * GROUP.value
    rest = debt if debt is None else debt.after(whole)
    _measure_scales(x[whole:], rest, scales[whole // block :], block, norm)
    return 1
