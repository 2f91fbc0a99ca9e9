"""Sums of basis vectors in Numba, see `reference_subspace.py`."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.cpu_intrinsics import jit

_TILE = 1024
_ROWS = 64


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    """As in the reference; tiles of the basis stay in L1 while those of `_ROWS` slices pass by."""
    out.copy_(base)
    _combine(basis.numpy(), coefficients.numpy(), out.numpy())


@jit
def _combine(basis, coefficients, out):  # type: ignore[no-untyped-def]
    for first in range(0, out.shape[0], _ROWS):
        last = min(first + _ROWS, out.shape[0])
        for start in range(0, out.shape[1], _TILE):
            _combine_tile(basis, coefficients, out, first, last, start)


@jit
def _combine_tile(basis, coefficients, out, first, last, start):  # type: ignore[no-untyped-def]
    rank, stop = basis.shape[0], min(start + _TILE, basis.shape[1])
    whole = rank - rank % 8
    for j in range(0, whole, 8):
        v0, v1 = basis[j][start:stop], basis[j + 1][start:stop]
        v2, v3 = basis[j + 2][start:stop], basis[j + 3][start:stop]
        v4, v5 = basis[j + 4][start:stop], basis[j + 5][start:stop]
        v6, v7 = basis[j + 6][start:stop], basis[j + 7][start:stop]
        for s in range(first, last):
            row = out[s][start:stop]
            c0, c1 = coefficients[j, s], coefficients[j + 1, s]
            c2, c3 = coefficients[j + 2, s], coefficients[j + 3, s]
            c4, c5 = coefficients[j + 4, s], coefficients[j + 5, s]
            c6, c7 = coefficients[j + 6, s], coefficients[j + 7, s]
            for k in range(len(row)):  # one load and store for eight sums, still in order
                half = row[k] + c0 * v0[k] + c1 * v1[k] + c2 * v2[k] + c3 * v3[k]
                row[k] = half + c4 * v4[k] + c5 * v5[k] + c6 * v6[k] + c7 * v7[k]
    for j in range(whole, rank):
        vector = basis[j][start:stop]
        for s in range(first, last):
            row, c = out[s][start:stop], coefficients[j, s]
            for k in range(len(row)):
                row[k] += c * vector[k]
