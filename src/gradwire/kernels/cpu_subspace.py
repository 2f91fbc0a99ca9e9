"""Sums of basis vectors in Numba, see `reference_subspace.py`."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.cpu_intrinsics import jit

_TILE = 1024


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    """As in the reference; a tile of the basis stays in the cache for all slices."""
    _combine(basis.numpy(), coefficients.numpy(), base.numpy(), out.numpy())


@jit
def _combine(basis, coefficients, base, out):  # type: ignore[no-untyped-def]
    rank, width = basis.shape
    for start in range(0, width, _TILE):
        stop = min(start + _TILE, width)
        for s in range(out.shape[0]):
            row = out[s][start:stop]
            row[:] = base[s][start:stop]
            whole = rank - rank % 4
            for j in range(0, whole, 4):
                v0, v1 = basis[j][start:stop], basis[j + 1][start:stop]
                v2, v3 = basis[j + 2][start:stop], basis[j + 3][start:stop]
                c0, c1 = coefficients[j, s], coefficients[j + 1, s]
                c2, c3 = coefficients[j + 2, s], coefficients[j + 3, s]
                for k in range(len(row)):  # one load and store for four sums, still in order
                    row[k] = (((row[k] + c0 * v0[k]) + c1 * v1[k]) + c2 * v2[k]) + c3 * v3[k]
            for j in range(whole, rank):
                vector, c = basis[j][start:stop], coefficients[j, s]
                for k in range(len(row)):
                    row[k] += c * vector[k]
