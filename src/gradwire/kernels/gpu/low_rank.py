"""Products of a large matrix and a few vectors in Triton.

Of a matrix every program has some rows or columns, and of these all factors, eight at a time, so
it is read once for up to eight. What is added in a given order is added by one thread; there are 16
lanes for every row, and one for every column, which is all that the order allows.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import low_rank
from gradwire.kernels.gpu.blocks import tree
from gradwire.kernels.gpu.compiler import jit, kernel, launch
from gradwire.kernels.gpu.rotation import columns
from gradwire.kernels.gpu.subspace import add_terms, fused, tile_of

_LANES, _FLOOR = tl.constexpr(low_rank.LANES), tl.constexpr(low_rank.FLOOR)
_ROWS, _STEPS = tl.constexpr(8), tl.constexpr(32)
_INF, _NAN = tl.constexpr(float("inf")), tl.constexpr(float("nan"))
_WIDE = 256
"""Columns of a tile of `settle_outer`."""


def _ranks(count: int) -> int:
    """Factors that go over the matrix together, of `count`."""
    return min(1 << (count - 1).bit_length(), 8)


@jit
def _source(x, extra, at, mask, EXTRA: tl.constexpr):
    """x + extra; without it, x + 0."""
    values = tl.load(x + at, mask=mask, other=0.0)
    if EXTRA:
        values += tl.load(extra + at, mask=mask, other=0.0)
    else:
        values += 0.0
    return values


@kernel
def _row_products(
    x, extra, q, out, count, width, rank, RANKS: tl.constexpr, EXTRA: tl.constexpr
):  # fmt: skip
    groups = (rank + RANKS - 1) // RANKS
    rows = tl.program_id(0) // groups * _ROWS + tl.arange(0, _ROWS)[None, :, None].to(tl.int64)
    k = tl.program_id(0) % groups * RANKS + tl.arange(0, RANKS)[:, None, None]
    row, factor = tl.minimum(rows, count - 1) * width, tl.minimum(k, rank - 1) * width
    column = tl.arange(0, _LANES)[None, None, :]
    total = tl.zeros((RANKS, _ROWS, _LANES), tl.float32)
    for _ in tl.range(0, (width + _LANES - 1) // _LANES, loop_unroll_factor=4):
        is_there = column < width
        weight = tl.load(q + factor + column, mask=is_there, other=0.0)
        total = fused(_source(x, extra, row + column, is_there, EXTRA), weight, total)
        column += _LANES
    sums = tree(tl.reshape(total, (RANKS * _ROWS, _LANES)), RANKS * _ROWS, 1, _LANES, True)
    place = out + k.to(tl.int64) * count + rows
    tl.store(place, tl.reshape(sums, (RANKS, _ROWS, 1)), mask=(k < rank) & (rows < count))


def row_products(x: Tensor, extra: Tensor | None, q: Tensor, out: Tensor) -> None:
    (count, width), ranks = x.shape, _ranks(len(q))
    launch(
        _row_products, -(-count // _ROWS.value) * -(-len(q) // ranks),
        x, x if extra is None else extra, q, out, count, width, len(q),
        RANKS=ranks, EXTRA=extra is not None,
    )  # fmt: skip


@kernel
def _column_products(
    x, extra, p, out, count, width, rank,
    RANKS: tl.constexpr, COLUMNS: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    groups = (rank + RANKS - 1) // RANKS
    column = tl.program_id(0) // groups * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    k = tl.program_id(0) % groups * RANKS + tl.arange(0, RANKS)[:, None].to(tl.int64)
    at, is_there = column.to(tl.int64), column < width
    weights = p + tl.minimum(k, rank - 1) * count
    total = tl.zeros((RANKS, COLUMNS), tl.float32)
    for _ in tl.range(0, count, loop_unroll_factor=8):
        weight = tl.load(weights)
        total = fused(weight, _source(x, extra, at, is_there, EXTRA), total)
        weights += 1
        at += width
    tl.store(out + k * width + column, total, mask=(k < rank) & is_there)


def column_products(x: Tensor, extra: Tensor | None, p: Tensor, out: Tensor) -> None:
    (count, width), ranks = x.shape, _ranks(len(p))
    columns = max(128 // ranks, 32)
    launch(
        _column_products, -(-width // columns) * -(-len(p) // ranks),
        x, x if extra is None else extra, p, out, count, width, len(p),
        RANKS=ranks, COLUMNS=columns, EXTRA=extra is not None,
    )  # fmt: skip


def add_outer(p: Tensor, q: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    base = out if accumulate else None
    add_terms(p, q, base, out, row_step=1, term_step=p.shape[1], fill=_is_filled_up(p))


def _is_filled_up(factors: Tensor) -> bool:
    """Are there factors of zeros? A product of zeros that is added makes -0 a 0."""
    return len(factors) % low_rank.GROUP != 0


@kernel
def _settle_outer(
    x, extra, p, q_mean, q_own, count, width, rank, FILL: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    rows, column = tile_of(count, width, COLUMNS)
    row, is_there = tl.minimum(rows, count - 1), column < width
    total = tl.zeros((_ROWS, COLUMNS), tl.float32)
    rest = _source(x, extra, row * width + column, is_there, True)
    p += row
    for k in range(rank):
        weight = tl.load(p + k * tl.cast(count, tl.int64))
        rest = fused(0.0 - weight, tl.load(q_own + column, mask=is_there, other=0.0), rest)
        total = fused(weight, tl.load(q_mean + column, mask=is_there, other=0.0), total)
        column += width
    if FILL:
        rest, total = rest + 0.0, total + 0.0
    at = rows * width + tile_of(count, width, COLUMNS)[1]
    tl.store(extra + at, rest, mask=(rows < count) & is_there)
    tl.store(x + at, total, mask=(rows < count) & is_there)


def settle_outer(x: Tensor, extra: Tensor, p: Tensor, q_mean: Tensor, q_own: Tensor) -> None:
    count, width = x.shape
    launch(
        _settle_outer, -(-count // _ROWS.value) * -(-width // _WIDE),
        x, extra, p, q_mean, q_own, count, width, len(p), FILL=_is_filled_up(p), COLUMNS=_WIDE,
    )  # fmt: skip


@jit
def _places(start):
    return start + tl.arange(0, _STEPS)[:, None] * _LANES + tl.arange(0, _LANES)[None, :]


@jit
def _dot(a, b, numel):
    """The sum of products of float64, in 16 lanes, which are added by a halving tree."""
    lanes = tl.zeros((1, _LANES), tl.float64)
    for start in range(0, numel, _STEPS * _LANES):
        at = _places(start)
        products = tl.load(a + at, mask=at < numel, other=0.0)
        products *= tl.load(b + at, mask=at < numel, other=0.0)
        parts = columns(tl.permute(tl.reshape(products, (1, _STEPS, _LANES)), (0, 2, 1)))
        for step in tl.static_range(_STEPS):
            lanes += parts[step]
    return tree(lanes, 1, 1, _LANES, True)


@jit
def _subtract(left, other, numel):
    """Take the part of `left` that lies along `other` off."""
    share = _dot(left, other, numel)
    tl.debug_barrier()
    for start in range(0, numel, _STEPS * _LANES):
        at = _places(start)
        part = share * tl.load(other + at, mask=at < numel)
        tl.store(left + at, tl.load(left + at, mask=at < numel) - part, mask=at < numel)
    tl.debug_barrier()


@jit
def _finish(left, row, whole, numel):
    """Write what is left over its norm, zeros if it is nearly nothing, NaN if it is not finite."""
    square = _dot(left, left, numel)
    tl.debug_barrier()
    for start in range(0, numel, _STEPS * _LANES):
        at = _places(start)
        unit = tl.load(left + at, mask=at < numel) / tl.sqrt(square)  # bits: both of float64
        unit = tl.where(square <= whole * _FLOOR, 0.0, unit)
        unit = tl.where(whole < _INF, unit, _NAN)
        tl.store(left + at, unit, mask=at < numel)
        tl.store(row + at, unit.to(tl.float32), mask=at < numel)
    tl.debug_barrier()


@kernel
def _orthonormalize(rows, wide, wanted, numel, count, ALWAYS: tl.constexpr):
    """All by one program: every sum needs the one before. `wide` has the rows as float64."""
    if not ALWAYS:
        count = tl.where(tl.load(wanted) != 0, count, 0)
    for i in range(count):
        row, left = rows + i * tl.cast(numel, tl.int64), wide + i * tl.cast(numel, tl.int64)
        whole = _dot(left, left, numel)
        for _ in tl.static_range(2):
            for k in range(i):
                _subtract(left, wide + k * tl.cast(numel, tl.int64), numel)
        _finish(left, row, whole, numel)


def orthonormalize(rows: Tensor, wanted: Tensor | None = None) -> None:
    launch(
        _orthonormalize, min(rows.numel(), 1), rows, rows.double(),
        rows if wanted is None else wanted, rows.shape[1], len(rows), ALWAYS=wanted is None,
    )  # fmt: skip
