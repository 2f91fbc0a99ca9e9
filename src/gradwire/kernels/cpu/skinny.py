"""The loops of low-rank products over some rows of a matrix, in LLVM's own terms.

They go along the rows in vectors of 16 values, and four factors at a time. A compiler left to
itself would have to prove first that no two of so many rows are the same memory. Every function is
made for a number of rows. Arguments are addresses of float32, how many values rows lie apart, and
`width`, how many they have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic

from gradwire.kernels.formats.low_rank import GROUP, LANES

cgutils: Any = numba_cgutils
_F32, _I1, _I32, _I64 = ir.FloatType(), ir.IntType(1), ir.IntType(32), ir.IntType(64)
_VECTOR, _MASK = ir.VectorType(_F32, LANES), ir.VectorType(_I1, LANES)
_INDICES = ir.VectorType(_I64, LANES)
_ZEROS = ir.Constant(_VECTOR, [0.0] * LANES)


class _Rows:
    """Rows that lie `apart` values apart, in vectors; of one that has a mask, the lanes it has."""

    def __init__(self, builder: Any, base: Any, apart: Any) -> None:
        self._builder, self._apart = builder, apart
        self._base = builder.inttoptr(base, _F32.as_pointer())

    def _place(self, row: int, at: Any) -> Any:
        offset = self._builder.add(self._builder.mul(_I64(row), self._apart), at)
        place = self._builder.gep(self._base, [offset])
        return self._builder.bitcast(place, _VECTOR.as_pointer())

    def load(self, row: int, at: Any, mask: Any) -> Any:
        place = self._place(row, at)
        if mask is None:
            return self._builder.load(place, align=4)
        return _call(self._builder, "masked.load", _VECTOR, [place, _I32(4), mask, _ZEROS], ".p0")

    def store(self, value: Any, row: int, at: Any, mask: Any) -> None:
        place = self._place(row, at)
        if mask is None:
            self._builder.store(value, place, align=4)
        else:
            arguments = [value, place, _I32(4), mask]
            _call(self._builder, "masked.store", ir.VoidType(), arguments, ".p0")


def _call(builder: Any, name: str, result: Any, arguments: list[Any], of: str = "") -> Any:
    kind = ir.FunctionType(result, [each.type for each in arguments])
    name = f"llvm.{name}.v{LANES}f32{of}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, "fma", _VECTOR, [a, b, c])


def _spread(builder: Any, value: Any, kind: Any = _VECTOR) -> Any:
    """A vector with `value` in all lanes."""
    unset = ir.Constant(kind, ir.Undefined)
    first = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(unset, value, _I32(0)), unset, first)


def _weights(builder: Any, base: Any, rows: int) -> list[list[Any]]:
    """A vector of each weight of each row and factor."""
    pointer = builder.inttoptr(base, _F32.as_pointer())

    def at(place: int) -> Any:
        return _spread(builder, builder.load(builder.gep(pointer, [_I64(place)])))

    return [[at(row * GROUP + k) for k in range(GROUP)] for row in range(rows)]


def _along(builder: Any, width: Any, step: Callable[[Any, Any], None]) -> None:
    """Emit `step(at, mask)` for whole vectors, and once with a mask for what is left of a row."""
    lanes = _I64(LANES)
    count, rest = builder.udiv(width, lanes), builder.urem(width, lanes)
    with cgutils.for_range(builder, count) as loop:
        step(builder.mul(loop.index, lanes), None)
    with builder.if_then(builder.icmp_unsigned("!=", rest, _I64(0))):
        numbers = ir.Constant(_INDICES, list(range(LANES)))
        mask = builder.icmp_unsigned("<", numbers, _spread(builder, rest, _INDICES))
        step(builder.mul(count, lanes), mask)


def dots_of(rows: int) -> Any:
    """sums[row, k] += (x[row] + extra[row]) * q[k], lane by lane."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, apart, extra, extra_apart, q, q_apart, sums, width = arguments
        left, right = _Rows(builder, x, apart), _Rows(builder, extra, extra_apart)
        factors, totals = _Rows(builder, q, q_apart), _Rows(builder, sums, _I64(LANES))
        held = [
            cgutils.alloca_once_value(builder, totals.load(place, _I64(0), None))
            for place in range(rows * GROUP)
        ]

        def step(at: Any, mask: Any) -> None:
            vectors = [factors.load(k, at, mask) for k in range(GROUP)]
            for row in range(rows):
                source = builder.fadd(left.load(row, at, mask), right.load(row, at, mask))
                for vector, total in zip(vectors, held[row * GROUP :], strict=False):
                    builder.store(_fma(builder, source, vector, builder.load(total)), total)

        _along(builder, width, step)
        for place, total in enumerate(held):
            totals.store(builder.load(total), place, _I64(0), None)
        return context.get_dummy_value()

    def typed(typingctx, x, apart, extra, extra_apart, q, q_apart, sums, width):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 8), build

    return intrinsic(typed)


def combine_of(rows: int) -> Any:
    """out[k] += weights[row, k] * (x[row] + extra[row]), row by row."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, apart, extra, extra_apart, weights, out, out_apart, width = arguments
        left, right = _Rows(builder, x, apart), _Rows(builder, extra, extra_apart)
        target, spread = _Rows(builder, out, out_apart), _weights(builder, weights, rows)

        def step(at: Any, mask: Any) -> None:
            totals = [target.load(k, at, mask) for k in range(GROUP)]
            for row in range(rows):
                source = builder.fadd(left.load(row, at, mask), right.load(row, at, mask))
                totals = [_fma(builder, spread[row][k], source, totals[k]) for k in range(GROUP)]
            for k, total in enumerate(totals):
                target.store(total, k, at, mask)

        _along(builder, width, step)
        return context.get_dummy_value()

    def typed(typingctx, x, apart, extra, extra_apart, weights, out, out_apart, width):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 8), build

    return intrinsic(typed)


def add_of(rows: int) -> Any:
    """out[row] += the sum over k of weights[row, k] * q[k]."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, apart, weights, q, q_apart, width = arguments
        target, factors = _Rows(builder, out, apart), _Rows(builder, q, q_apart)
        spread = _weights(builder, weights, rows)

        def step(at: Any, mask: Any) -> None:
            vectors = [factors.load(k, at, mask) for k in range(GROUP)]
            for row in range(rows):
                total = target.load(row, at, mask)
                for weight, vector in zip(spread[row], vectors, strict=True):
                    total = _fma(builder, weight, vector, total)
                target.store(total, row, at, mask)

        _along(builder, width, step)
        return context.get_dummy_value()

    def typed(typingctx, out, apart, weights, q, q_apart, width):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 6), build

    return intrinsic(typed)


def settle_of(rows: int) -> Any:
    """extra[row] += x[row] + the sum of minus[row, k] * own[k]; x[row] = that of plus and mean."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, extra, apart, plus, minus, mean, own, q_apart, width = arguments
        left, right = _Rows(builder, x, apart), _Rows(builder, extra, apart)
        of_mean, of_own = _Rows(builder, mean, q_apart), _Rows(builder, own, q_apart)
        added, taken = _weights(builder, plus, rows), _weights(builder, minus, rows)

        def step(at: Any, mask: Any) -> None:
            means = [of_mean.load(k, at, mask) for k in range(GROUP)]
            owns = [of_own.load(k, at, mask) for k in range(GROUP)]
            for row in range(rows):
                total = _ZEROS
                rest = builder.fadd(left.load(row, at, mask), right.load(row, at, mask))
                for k in range(GROUP):
                    rest = _fma(builder, taken[row][k], owns[k], rest)
                    total = _fma(builder, added[row][k], means[k], total)
                right.store(rest, row, at, mask)
                left.store(total, row, at, mask)

        _along(builder, width, step)
        return context.get_dummy_value()

    def typed(typingctx, x, extra, apart, plus, minus, mean, own, q_apart, width):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 9), build

    return intrinsic(typed)
