"""Coefficients in a basis, and sums of its vectors, in Numba.

Both are matrix products, blocked in the usual way: tiles of the result stay in registers while all
vectors are added to them, from copies of both factors that lie in the order of use. Only the sums
are in no other order than that of their terms, so that every machine gets the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.scales import sum_of_squares, tree_sum
from gradwire.kernels.formats.layout import TILE

cgutils: Any = numba_cgutils

_ROWS, _LANES = 6, 16
"""A tile: twelve of the sixteen registers of AVX2, or six of AVX-512."""
_GROUPS = 32
"""The coefficients of so many tiles below each other stay in L2."""

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, _LANES)


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    out.copy_(base)
    _combine(basis.numpy(), coefficients.numpy(), out.numpy())


def project(
    slices: Tensor, mean: Tensor, basis: Tensor, coefficients: Tensor, energies: Tensor
) -> None:
    arrays = (each.numpy() for each in (slices, mean, basis, coefficients, energies))
    _project(*arrays)


def _build_add_products(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """A loop in LLVM's own terms: a compiler left to itself keeps no tile in registers."""
    out, stride, weights, apart, step, vectors, count = arguments
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
            at = builder.add(builder.mul(loop.index, step), builder.mul(_I64(row), apart))
            weight = builder.load(builder.gep(weights, [at]))
            weight = builder.insert_element(unset, weight, _I32(0))
            weight = builder.shuffle_vector(weight, unset, first_lane)
            builder.store(builder.call(fma, [weight, vector, builder.load(total)]), total)
    for place, total in zip(places, sums, strict=True):
        builder.store(builder.load(total), place, align=4)
    return context.get_dummy_value()


def _type_add_products(typingctx, out, stride, weights, apart, step, vectors, count):  # type: ignore[no-untyped-def]
    """Add the sum over j < count of weight(row, j) * vectors[j] to each row of the tile at `out`.

    Addresses: `vectors` is (count, _LANES), the rows of the tile are `stride` values apart, and
    weight(row, j) is row * apart + j * step values from `weights`.
    """
    return types.void(*[types.int64] * 7), _build_add_products


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
                    _add_products(place, width, ours, 1, _ROWS, theirs, rank)
                else:
                    tile = out[row : row + _ROWS, column : column + _LANES]
                    edge[: tile.shape[0], : tile.shape[1]] = tile
                    _add_products(edge.ctypes.data, _LANES, ours, 1, _ROWS, theirs, rank)
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


@jit
def _project(slices, mean, basis, coefficients, energies):  # type: ignore[no-untyped-def]
    """Slices are taken some at a time, and of them a tile, centred, that stays in L1."""
    count, width = slices.shape
    vectors = _packed(basis.T, _LANES)
    centred, squares = np.zeros((_ROWS, TILE), np.float32), np.empty(TILE, np.float64)
    sums = np.empty((len(vectors), _ROWS, _LANES), np.float32)
    for first in range(0, count, _ROWS):
        rows = min(_ROWS, count - first)
        sums[:] = 0
        energies[first : first + rows] = 0
        for at in range(0, width, TILE):
            size = min(TILE, width - at)
            for row in range(rows):
                tile, m = centred[row], first + row
                source, base = slices[m, at : at + size], mean[m, at : at + size]
                for k in range(size):
                    tile[k] = source[k] - base[k]
                tile[size:] = 0
                energies[m, 0] += sum_of_squares(tile, squares)
            for panel in range(len(vectors)):
                place, theirs = sums[panel].ctypes.data, vectors[panel, at:].ctypes.data
                _add_products(place, _LANES, centred.ctypes.data, TILE, 1, theirs, size)
        for row in range(rows):
            _store(sums, row, coefficients[:, first + row])
            energies[first + row, 1] = _energy(sums, row, len(basis), squares)


@jit
def _store(sums, row, out):  # type: ignore[no-untyped-def]
    """Copy the coefficients of one slice to their places."""
    for j in range(len(out)):
        out[j] = sums[j // _LANES, row, j % _LANES]


@jit
def _energy(sums, row, rank, lanes):  # type: ignore[no-untyped-def]
    """The energy of the `rank` coefficients of one slice; `lanes` is room to work in."""
    lanes[:_LANES] = 0
    for panel in range(len(sums)):
        part = sums[panel, row]
        for lane in range(min(_LANES, rank - panel * _LANES)):
            lanes[lane] += np.float64(part[lane]) * np.float64(part[lane])
    return tree_sum(lanes, _LANES)
