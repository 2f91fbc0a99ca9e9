"""Sums of basis vectors in Numba, see `reference_subspace.py`."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.cpu_intrinsics import fma, jit

_TILE = 512
_ROWS = 64


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    """As in the reference; tiles of the basis stay in L1 while those of `_ROWS` slices pass by."""
    out.copy_(base)
    _combine(basis.numpy(), coefficients.numpy(), out.numpy())


@jit
def _combine(basis, coefficients, out):  # type: ignore[no-untyped-def]
    rank, count, width = basis.shape[0], out.shape[0], out.shape[1]
    paired, fours = count - count % 2, rank - rank % 4
    for first in range(0, count, _ROWS):
        last = min(first + _ROWS, paired)
        for start in range(0, width, _TILE):
            stop = min(start + _TILE, width)
            for j in range(0, fours, 4):
                _add_four(basis, coefficients, out, j, first, last, start, stop)
            for j in range(fours, rank):
                for s in range(first, last):
                    _add_one(basis, coefficients, out, j, s, start, stop)
    for s in range(paired, count):
        for j in range(rank):
            _add_one(basis, coefficients, out, j, s, 0, width)


@jit
def _add_four(basis, coefficients, out, j, first, last, start, stop):  # type: ignore[no-untyped-def]
    """Four vectors to each of an even number of slices.

    A vector is loaded for two slices at a time, a slice for all four vectors, added in order.
    """
    v0, v1 = basis[j][start:stop], basis[j + 1][start:stop]
    v2, v3 = basis[j + 2][start:stop], basis[j + 3][start:stop]
    for s in range(first, last, 2):
        row, other = out[s][start:stop], out[s + 1][start:stop]
        a0, a1 = coefficients[j, s], coefficients[j + 1, s]
        a2, a3 = coefficients[j + 2, s], coefficients[j + 3, s]
        b0, b1 = coefficients[j, s + 1], coefficients[j + 1, s + 1]
        b2, b3 = coefficients[j + 2, s + 1], coefficients[j + 3, s + 1]
        for k in range(len(row)):
            row[k] = fma(a3, v3[k], fma(a2, v2[k], fma(a1, v1[k], fma(a0, v0[k], row[k]))))
            other[k] = fma(b3, v3[k], fma(b2, v2[k], fma(b1, v1[k], fma(b0, v0[k], other[k]))))


@jit
def _add_one(basis, coefficients, out, j, s, start, stop):  # type: ignore[no-untyped-def]
    vector, row, c = basis[j][start:stop], out[s][start:stop], coefficients[j, s]
    for k in range(len(row)):
        row[k] = fma(c, vector[k], row[k])
