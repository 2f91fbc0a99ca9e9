"""Rows of eight float32 in LLVM's own terms: what they are, and what can be done to one.

A *row* has one value of each of eight blocks, next to each other. A complex number is two rows, its
real and its imaginary part. All that is done adds, subtracts and multiplies whole rows, so it is
vector instructions on any processor; a compiler left to itself would have to prove first that the
rows of a butterfly are not the same memory. Arguments are addresses, in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 8
_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_ROW = ir.VectorType(_F32, LANES)
_NBYTES = 4 * LANES


@dataclass(frozen=True)
class Row:
    """The rows of an expression; its operators emit the instructions."""

    builder: Any
    value: Any

    def __add__(self, other: Row) -> Row:
        return Row(self.builder, self.builder.fadd(self.value, other.value))

    def __sub__(self, other: Row) -> Row:
        return Row(self.builder, self.builder.fsub(self.value, other.value))

    def __mul__(self, other: Row) -> Row:
        return Row(self.builder, self.builder.fmul(self.value, other.value))

    def __neg__(self) -> Row:
        return Row(self.builder, self.builder.fneg(self.value))


Complex = tuple[Row, Row]


class Memory:
    """Loads and stores at an address, `at` rows or numbers further on."""

    def __init__(self, builder: Any, address: Any) -> None:
        self.builder, self.address = builder, address

    def _pointer(self, nbytes: int, kind: Any) -> Any:
        place = self.builder.add(self.address, _I64(nbytes))
        return self.builder.inttoptr(place, kind.as_pointer())

    def row(self, at: int = 0) -> Row:
        pointer = self._pointer(_NBYTES * at, _ROW)
        return Row(self.builder, self.builder.load(pointer, align=4))

    def put(self, row: Row, at: int = 0) -> None:
        self.builder.store(row.value, self._pointer(_NBYTES * at, _ROW), align=4)

    def complex(self) -> Complex:
        return self.row(0), self.row(1)

    def put_complex(self, number: Complex) -> None:
        self.put(number[0], 0)
        self.put(number[1], 1)

    def scalar(self, at: int = 0) -> Row:
        """The number there, in all lanes."""
        number = self.builder.load(self._pointer(4 * at, _F32), align=4)
        return _broadcast(self.builder, number)

    def index(self, at: int) -> Any:
        return self.builder.load(self._pointer(8 * at, _I64), align=8)

    def further(self, nbytes: Any) -> Memory:
        return Memory(self.builder, self.builder.add(self.address, nbytes))


def _broadcast(builder: Any, number: Any) -> Row:
    unset = ir.Constant(_ROW, ir.Undefined)
    first = builder.insert_element(unset, number, _I32(0))
    lanes = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return Row(builder, builder.shuffle_vector(first, unset, lanes))


def step(count: int) -> Callable[[Callable[..., None]], Any]:
    """Make a function for Numba of `count` addresses of one that emits what it does."""

    def wrapped(emit: Callable[..., None]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit(*(Memory(builder, address) for address in arguments))
            return context.get_dummy_value()

        def typed() -> Any:
            return types.void(*[types.int64] * count), codegen

        typers: dict[int, Callable[..., Any]] = {  # Numba wants the arguments by name
            1: lambda typingctx, a: typed(),
            2: lambda typingctx, a, b: typed(),
            3: lambda typingctx, a, b, c: typed(),
            4: lambda typingctx, a, b, c, d: typed(),
            5: lambda typingctx, a, b, c, d, e: typed(),
        }
        return intrinsic(typers[count])

    return wrapped


def one_nan(row: Row) -> Row:
    """The row, with all NaN alike."""
    builder = row.builder
    is_number = builder.fcmp_ordered("ord", row.value, row.value)
    nan = ir.Constant(_ROW, [float(np.nan)] * LANES)
    return Row(builder, builder.select(is_number, row.value, nan))


def transposed(rows: list[Row]) -> list[Row]:
    """Row i of the result has lane i of every row: three rounds of exchanges between pairs."""
    for distance in (1, 2, 4):
        keep = [lane & distance == 0 for lane in range(LANES)]
        low = [lane if kept else lane + LANES - distance for lane, kept in enumerate(keep)]
        high = [lane + distance if kept else lane + LANES for lane, kept in enumerate(keep)]
        for i in range(LANES):
            if i & distance == 0:
                one, two = rows[i], rows[i + distance]
                rows[i], rows[i + distance] = _shuffled(one, two, low), _shuffled(one, two, high)
    return rows


def _shuffled(one: Row, two: Row, lanes: list[int]) -> Row:
    mask = ir.Constant(ir.VectorType(_I32, LANES), lanes)
    return Row(one.builder, one.builder.shuffle_vector(one.value, two.value, mask))
