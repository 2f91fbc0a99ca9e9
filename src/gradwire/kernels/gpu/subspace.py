"""Coefficients in a basis, and sums of its vectors, in Triton.

Both are matrix products by one kernel. A program has a tile of the result in registers, and adds
one term after the other to it, each by a fused multiply-add, in the order of the reference. Slices
are centred, and turned so that neighbours are read together, by a launch of its own.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.gpu.blocks import tree
from gradwire.kernels.gpu.compiler import jit, kernel, launch

_ROWS = tl.constexpr(8)
_SLICES, _LANES = tl.constexpr(64), tl.constexpr(16)


@jit
def tile_of(count, width, COLUMNS: tl.constexpr):
    """The rows and the columns of this program."""
    across = (width + COLUMNS - 1) // COLUMNS
    rows = tl.program_id(0) // across * _ROWS + tl.arange(0, _ROWS)[:, None]
    columns = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return rows.to(tl.int64), columns


@jit
def fused(a, b, c):
    """a * b + c, rounded once."""
    return tl.fma(a, b, c)


@kernel
def _add_products(
    weights, vectors, base, out, count, width, terms, row_step, term_step,
    BASE: tl.constexpr, COLUMNS: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """out[row] = base[row] + the sum over t of weights[row, t] vectors[t]; weights lie anywhere."""
    rows, columns = tile_of(count, width, COLUMNS)
    row = tl.minimum(rows, count - 1)  # the last one again takes no mask
    if BASE:
        total = tl.load(base + row * width + columns, mask=columns < width)
    else:
        total = tl.zeros((_ROWS, COLUMNS), tl.float32)
    weights += row * row_step
    vectors += columns
    for _ in tl.range(0, terms, loop_unroll_factor=4):
        weight, vector = tl.load(weights), tl.load(vectors, mask=columns < width)
        total = fused(weight, vector, total)
        weights += term_step
        vectors += width
    if FILL:
        total += 0.0
    tl.store(out + rows * width + columns, total, mask=(rows < count) & (columns < width))


@kernel
def _energies(x, mean, turned, energies, count, terms, CENTRE: tl.constexpr):
    """Squared norms of slices, which are centred and turned, or of their coefficients."""
    rows = tl.program_id(0) * _SLICES + tl.arange(0, _SLICES)[:, None].to(tl.int64)
    sums = tl.zeros((_SLICES, _LANES), tl.float64)
    for start in range(0, terms, _LANES):
        term = start + tl.arange(0, _LANES)[None, :]
        inside, across = (rows < count) & (term < terms), term.to(tl.int64) * count + rows
        if CENTRE:
            at = rows * terms + term
            values = tl.load(x + at, mask=inside, other=0.0)
            values -= tl.load(mean + at, mask=inside, other=0.0)
            tl.store(turned + across, values, mask=inside)
        else:
            values = tl.load(x + across, mask=inside, other=0.0)
        sums += values.to(tl.float64) * values.to(tl.float64)
    place = energies + rows * 2 + (0 if CENTRE else 1)
    tl.store(place, tree(sums, _SLICES, 1, _LANES, True), mask=rows < count)


def project(
    slices: Tensor, mean: Tensor, basis: Tensor, coefficients: Tensor, energies: Tensor
) -> None:
    (count, size), rank = slices.shape, len(basis)
    turned, programs = slices.new_empty(size, count), -(-count // _SLICES.value)
    launch(_energies, programs, slices, mean, turned, energies, count, size, CENTRE=True)
    add_terms(basis, turned, None, coefficients, row_step=size, term_step=1)
    launch(_energies, programs, coefficients, mean, turned, energies, count, rank, CENTRE=False)


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    add_terms(coefficients, basis, base, out, row_step=1, term_step=coefficients.shape[1])


def add_terms(
    weights: Tensor,
    vectors: Tensor,
    base: Tensor | None,
    out: Tensor,
    *,
    row_step: int,
    term_step: int,
    fill: bool = False,
) -> None:
    """Write base plus a sum of vectors to each row of `out`; None counts as zeros.

    Weights lie so many places apart. With `fill`, a product of zeros is added last.
    """
    (terms, width), count = vectors.shape, len(out)
    columns = min(max(1 << (width - 1).bit_length(), 128), 512)
    launch(
        _add_products, -(-count // _ROWS.value) * -(-width // columns),
        weights, vectors, out if base is None else base, out, count, width, terms,
        row_step, term_step, BASE=base is not None, COLUMNS=columns, FILL=fill,
    )  # fmt: skip
