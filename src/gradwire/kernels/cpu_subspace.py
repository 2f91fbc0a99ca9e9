"""Sums of basis vectors in Numba, see `reference_subspace.py`.

It is a matrix product, blocked in the usual way: tiles of the result stay in registers while all
vectors are added to them, from copies of basis and coefficients that lie in the order of use.
Only the sums over vectors are not blocked, since every value is to be added in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic
from torch import Tensor

from gradwire.kernels.cpu_intrinsics import jit

cgutils: Any = numba_cgutils

_ROWS, _LANES = 6, 16
"""A tile: twelve of the sixteen registers of AVX2, or six of AVX-512."""
_GROUPS = 32
"""The coefficients of so many tiles below each other stay in L2."""

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, _LANES)


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    """As in the reference."""
    out.copy_(base)
    _combine(basis.numpy(), coefficients.numpy(), out.numpy())


def _build_add_products(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """A loop in LLVM's own terms: a compiler left to itself keeps no tile in registers."""
    out, stride, weights, vectors, count = arguments
    floats = _F32.as_pointer()
    out, weights, vectors = (builder.inttoptr(each, floats) for each in (out, weights, vectors))
    vector_fma = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    fma = cgutils.get_or_insert_function(builder.module, vector_fma, f"llvm.fma.v{_LANES}f32")
    unset = ir.Constant(_VECTOR, ir.Undefined)
    first_lane = ir.Constant(ir.VectorType(_I32, _LANES), [0] * _LANES)

    def vector_at(base: Any, index: Any) -> Any:
        return builder.bitcast(builder.gep(base, [index]), _VECTOR.as_pointer())

    places = [vector_at(out, builder.mul(_I64(row), stride)) for row in range(_ROWS)]
    sums = [cgutils.alloca_once_value(builder, builder.load(place, align=4)) for place in places]
    with cgutils.for_range(builder, count) as loop:
        vector = builder.load(vector_at(vectors, builder.mul(loop.index, _I64(_LANES))), align=4)
        for row, total in enumerate(sums):
            at = builder.add(builder.mul(loop.index, _I64(_ROWS)), _I64(row))
            weight = builder.load(builder.gep(weights, [at]))
            weight = builder.insert_element(unset, weight, _I32(0))
            weight = builder.shuffle_vector(weight, unset, first_lane)
            builder.store(builder.call(fma, [weight, vector, builder.load(total)]), total)
    for place, total in zip(places, sums, strict=True):
        builder.store(builder.load(total), place, align=4)
    return context.get_dummy_value()


def _type_add_products(typingctx, out, stride, weights, vectors, count):  # type: ignore[no-untyped-def]
    """Add the sum over j < count of weights[j, row] * vectors[j] to each row of the tile at `out`.

    Addresses: `weights` is (count, _ROWS), `vectors` (count, _LANES), and the rows of the tile
    are `stride` values apart.
    """
    return types.void(*[types.int64] * 5), _build_add_products


_add_products: Any = intrinsic(_type_add_products)


@jit
def _combine(basis, coefficients, out):  # type: ignore[no-untyped-def]
    rank, count, width = basis.shape[0], out.shape[0], out.shape[1]
    vectors, weights = _packed(basis, _LANES), _packed(coefficients, _ROWS)
    edge = np.zeros((_ROWS, _LANES), np.float32)
    for first in range(0, len(weights), _GROUPS):
        for panel in range(len(vectors)):
            for group in range(first, min(first + _GROUPS, len(weights))):
                row, column = group * _ROWS, panel * _LANES
                ours, theirs = weights[group].ctypes.data, vectors[panel].ctypes.data
                if row + _ROWS <= count and column + _LANES <= width:
                    place = out.ctypes.data + 4 * (row * width + column)
                    _add_products(place, width, ours, theirs, rank)
                else:
                    tile = out[row : row + _ROWS, column : column + _LANES]
                    edge[: tile.shape[0], : tile.shape[1]] = tile
                    _add_products(edge.ctypes.data, _LANES, ours, theirs, rank)
                    tile[:] = edge[: tile.shape[0], : tile.shape[1]]


@jit
def _packed(matrix, width):  # type: ignore[no-untyped-def]
    """Panels of `width` columns, each of them contiguous, the last one filled up with zeros."""
    rows, columns = matrix.shape
    packed = np.zeros((-(-columns // width), rows, width), np.float32)
    for j in range(rows):
        for panel in range(len(packed)):
            start = panel * width
            for k in range(min(width, columns - start)):
                packed[panel, j, k] = matrix[j, start + k]
    return packed
