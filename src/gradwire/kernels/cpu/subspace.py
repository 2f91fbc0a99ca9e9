"""Coefficients in a basis, and sums of its vectors, in Numba.

Both are matrix products, blocked in the usual way: tiles of the result stay in registers while all
vectors are added to them, from copies of both factors that lie in the order of use and stay in the
caches meanwhile. Only the sums are in no other order than that of their terms, so that every
machine gets the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.scales import tree_sum

cgutils: Any = numba_cgutils

_LANES = 16
_ROWS = 12 if "+avx512f" in llvm.get_host_cpu_features().flatten() else 6
"""A tile: twelve of the sixteen registers of AVX2, or of the 32 of AVX-512."""
_GROUPS = 8
"""So many tiles below each other meet a panel of vectors while it is in L1."""
_TILE = 256
"""Values of slices, and vectors for them, that are in L1 at a time."""

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_F32, _LANES)
_DOUBLES = ir.VectorType(ir.DoubleType(), _LANES)


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    _combine(basis.numpy(), coefficients.numpy(), base.numpy(), out.numpy())


def project(
    slices: Tensor, mean: Tensor, basis: Tensor, coefficients: Tensor, energies: Tensor
) -> None:
    arrays = (each.numpy() for each in (slices, mean, basis, coefficients, energies))
    _project(*arrays)


def _vector_at(builder: Any, base: Any, index: Any, vector: Any = _VECTOR) -> Any:
    return builder.bitcast(builder.gep(base, [index]), vector.as_pointer())


def _build_add_products(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """A loop in LLVM's own terms: a compiler left to itself keeps no tile in registers."""
    base, out, stride, weights, apart, step, vectors, count = arguments
    floats = _F32.as_pointer()
    base, out, weights, vectors = (
        builder.inttoptr(each, floats) for each in (base, out, weights, vectors)
    )
    vector_fma = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    fma = cgutils.get_or_insert_function(builder.module, vector_fma, f"llvm.fma.v{_LANES}f32")
    unset = ir.Constant(_VECTOR, ir.Undefined)
    first_lane = ir.Constant(ir.VectorType(_I32, _LANES), [0] * _LANES)
    places = [builder.mul(_I64(row), stride) for row in range(_ROWS)]
    starts = [builder.load(_vector_at(builder, base, place), align=4) for place in places]
    sums = [cgutils.alloca_once_value(builder, start) for start in starts]
    with cgutils.for_range(builder, count) as loop:
        at = builder.mul(loop.index, _I64(_LANES))
        vector = builder.load(_vector_at(builder, vectors, at), align=4)
        for row, total in enumerate(sums):
            at = builder.add(builder.mul(loop.index, step), builder.mul(_I64(row), apart))
            weight = builder.load(builder.gep(weights, [at]))
            weight = builder.insert_element(unset, weight, _I32(0))
            weight = builder.shuffle_vector(weight, unset, first_lane)
            builder.store(builder.call(fma, [weight, vector, builder.load(total)]), total)
    for place, total in zip(places, sums, strict=True):
        builder.store(builder.load(total), _vector_at(builder, out, place), align=4)
    return context.get_dummy_value()


def _type_add_products(typingctx, base, out, stride, weights, apart, step, vectors, count):  # type: ignore[no-untyped-def]
    """Write to each row of the tile at `out` that of the tile at `base`, plus a sum of vectors.

    That is the sum over j < count of weight(row, j) * vectors[j]. Addresses: `vectors` is (count,
    _LANES), the rows of both tiles are `stride` values apart, and weight(row, j) is
    row * apart + j * step values from `weights`.
    """
    return types.void(*[types.int64] * 8), _build_add_products


_add_products: Any = intrinsic(_type_add_products)


def _build_add_squares(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    values, count, lanes = arguments
    values = builder.inttoptr(values, _F32.as_pointer())
    place = builder.inttoptr(lanes, _DOUBLES.as_pointer())
    total = cgutils.alloca_once_value(builder, builder.load(place, align=8))
    with cgutils.for_range(builder, count) as loop:
        at = _vector_at(builder, values, builder.mul(loop.index, _I64(_LANES)))
        wide = builder.fpext(builder.load(at, align=4), _DOUBLES)
        builder.store(builder.fadd(builder.load(total), builder.fmul(wide, wide)), total)
    builder.store(builder.load(total), place, align=8)
    return context.get_dummy_value()


def _type_add_squares(typingctx, values, count, lanes):  # type: ignore[no-untyped-def]
    """Add the squares of `count` vectors of float32 at `values` to those of float64 at `lanes`."""
    return types.void(*[types.int64] * 3), _build_add_squares


_add_squares: Any = intrinsic(_type_add_squares)


@jit
def _combine(basis, coefficients, base, out):  # type: ignore[no-untyped-def]
    rank, count, width = basis.shape[0], out.shape[0], out.shape[1]
    vectors, weights = _packed(basis, _LANES), _packed(coefficients, _ROWS)
    edge = np.zeros((_ROWS, _LANES), np.float32)
    room = edge.ctypes.data
    for first in range(0, len(weights), _GROUPS):
        for panel in range(len(vectors)):
            for group in range(first, min(first + _GROUPS, len(weights))):
                row, column = group * _ROWS, panel * _LANES
                ours, theirs = weights[group].ctypes.data, vectors[panel].ctypes.data
                if row + _ROWS <= count and column + _LANES <= width:
                    at = 4 * (row * width + column)
                    place, start = out.ctypes.data + at, base.ctypes.data + at
                    _add_products(start, place, width, ours, 1, _ROWS, theirs, rank)
                else:
                    rows, columns = min(_ROWS, count - row), min(_LANES, width - column)
                    old = base[row : row + rows, column : column + columns]
                    edge[:rows, :columns] = old
                    _add_products(room, room, _LANES, ours, 1, _ROWS, theirs, rank)
                    out[row : row + rows, column : column + columns] = edge[:rows, :columns]


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
    """Some slices at a time, and a tile of them, centred, that meets one panel after the other."""
    count, width = slices.shape
    vectors, together = _packed(basis.T, _LANES), _GROUPS * _ROWS
    centred = np.zeros((together, _TILE), np.float32)
    sums = np.empty((len(vectors), together, _LANES), np.float32)
    lanes = np.empty((together, _LANES), np.float64)
    for first in range(0, count, together):
        rows = min(together, count - first)
        sums[:] = 0
        lanes[:] = 0
        for at in range(0, width, _TILE):
            size = min(_TILE, width - at)
            for row in range(rows):
                _centre(slices[first + row], mean[first + row], at, size, centred[row])
                square_vectors = -(-size // _LANES)
                _add_squares(centred[row].ctypes.data, square_vectors, lanes[row].ctypes.data)
            for panel in range(len(vectors)):
                theirs = vectors[panel, at:].ctypes.data
                for row in range(0, rows, _ROWS):
                    place, ours = sums[panel, row:].ctypes.data, centred[row:].ctypes.data
                    _add_products(place, place, _LANES, ours, _TILE, 1, theirs, size)
        _store(sums, rows, coefficients[:, first : first + rows])
        for row in range(rows):
            energies[first + row, 0] = tree_sum(lanes[row], _LANES)
            energies[first + row, 1] = _energy(sums, row, len(basis), lanes[row])


@jit
def _centre(values, mean, at, size, out):  # type: ignore[no-untyped-def]
    """Write `size` values from `at` on, less their mean, and zeros after them."""
    source, base = values[at : at + size], mean[at : at + size]
    for k in range(size):
        out[k] = source[k] - base[k]
    out[size:] = 0


@jit
def _store(sums, rows, out):  # type: ignore[no-untyped-def]
    """Copy the coefficients of some slices to their places."""
    for j in range(len(out)):
        panel = sums[j // _LANES]
        for row in range(rows):
            out[j, row] = panel[row, j % _LANES]


@jit
def _energy(sums, row, rank, lanes):  # type: ignore[no-untyped-def]
    """The energy of the `rank` coefficients of one slice; `lanes` is room to work in."""
    lanes[:] = 0
    for panel in range(len(sums)):
        part = sums[panel, row]
        for lane in range(min(_LANES, rank - panel * _LANES)):
            lanes[lane] += np.float64(part[lane]) * np.float64(part[lane])
    return tree_sum(lanes, _LANES)
