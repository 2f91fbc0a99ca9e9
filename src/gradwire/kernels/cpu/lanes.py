"""The steps of Fourier transforms on eight blocks at once, in LLVM's own terms.

A *row* is 8 float32: one value of each of eight blocks, next to each other. A complex number is two
rows, its real and its imaginary part. All steps of a transform add, subtract and multiply whole
rows, so they are vector instructions on any processor; a compiler left to itself would have to
prove first that the rows of a butterfly are not the same memory. Arguments are addresses, in bytes.
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
class _Row:
    """The rows of an expression; its operators emit the instructions."""

    builder: Any
    value: Any

    def __add__(self, other: _Row) -> _Row:
        return _Row(self.builder, self.builder.fadd(self.value, other.value))

    def __sub__(self, other: _Row) -> _Row:
        return _Row(self.builder, self.builder.fsub(self.value, other.value))

    def __mul__(self, other: _Row) -> _Row:
        return _Row(self.builder, self.builder.fmul(self.value, other.value))

    def __neg__(self) -> _Row:
        return _Row(self.builder, self.builder.fneg(self.value))


_Complex = tuple[_Row, _Row]


class Memory:
    """Loads and stores at an address, `at` rows or numbers further on."""

    def __init__(self, builder: Any, address: Any) -> None:
        self.builder, self.address = builder, address

    def _pointer(self, nbytes: int, kind: Any) -> Any:
        place = self.builder.add(self.address, _I64(nbytes))
        return self.builder.inttoptr(place, kind.as_pointer())

    def row(self, at: int = 0) -> _Row:
        pointer = self._pointer(_NBYTES * at, _ROW)
        return _Row(self.builder, self.builder.load(pointer, align=4))

    def put(self, row: _Row, at: int = 0) -> None:
        self.builder.store(row.value, self._pointer(_NBYTES * at, _ROW), align=4)

    def complex(self) -> _Complex:
        return self.row(0), self.row(1)

    def put_complex(self, number: _Complex) -> None:
        self.put(number[0], 0)
        self.put(number[1], 1)

    def scalar(self, at: int = 0) -> _Row:
        """The number there, in all lanes."""
        number = self.builder.load(self._pointer(4 * at, _F32), align=4)
        return _broadcast(self.builder, number)

    def index(self, at: int) -> Any:
        return self.builder.load(self._pointer(8 * at, _I64), align=8)

    def further(self, nbytes: Any) -> Memory:
        return Memory(self.builder, self.builder.add(self.address, nbytes))


def _broadcast(builder: Any, number: Any) -> _Row:
    unset = ir.Constant(_ROW, ir.Undefined)
    first = builder.insert_element(unset, number, _I32(0))
    lanes = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
    return _Row(builder, builder.shuffle_vector(first, unset, lanes))


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


@step(2)
def plain_two(a: Memory, b: Memory) -> None:
    """(a + b, a - b)."""
    (ar, ai), (br, bi) = a.complex(), b.complex()
    a.put_complex((ar + br, ai + bi))
    b.put_complex((ar - br, ai - bi))


@step(4)
def plain_four(a: Memory, b: Memory, c: Memory, d: Memory) -> None:
    """A butterfly of four."""
    _put_four([a, b, c, d], [place.complex() for place in (a, b, c, d)])


@step(5)
def four(a: Memory, b: Memory, c: Memory, d: Memory, angles: Memory) -> None:
    """The same, after b, c and d are turned by two, one and three angles."""
    turned = [a.complex()]
    for place, times in ((b, 2), (c, 1), (d, 3)):
        cos, sin = angles.scalar(2 * times - 2), angles.scalar(2 * times - 1)
        re, im = place.complex()
        turned.append((re * cos + im * sin, im * cos - re * sin))
    _put_four([a, b, c, d], turned)


def _put_four(places: list[Memory], numbers: list[_Complex]) -> None:
    (ar, ai), (br, bi), (cr, ci), (dr, di) = numbers
    sr, si, tr, ti = ar + br, ai + bi, cr + dr, ci + di
    pr, pi, qr, qi = ar - br, ai - bi, cr - dr, ci - di
    results = [(sr + tr, si + ti), (pr + qi, pi - qr), (sr - tr, si - ti), (pr - qi, pi + qr)]
    for place, result in zip(places, results, strict=True):
        place.put_complex(result)


def _split(a: _Complex, b: _Complex, angle: Memory) -> tuple[_Complex, _Complex]:
    (ar, ai), (br, bi) = a, b
    cos, sin = angle.scalar(0), angle.scalar(1)
    er, ei, dr, di = ar + br, ai - bi, ar - br, ai + bi
    tr, ti = cos * di - sin * dr, cos * dr + sin * di
    return (er + tr, ei - ti), (er - tr, -ei - ti)


def _join(a: _Complex, b: _Complex, angle: Memory) -> tuple[_Complex, _Complex]:
    """Real and imaginary parts come out exchanged: the transform that follows is then back."""
    (ar, ai), (br, bi) = a, b
    cos, sin = angle.scalar(0), angle.scalar(1)
    er, ei, dr, di = ar + br, ai - bi, ar - br, ai + bi
    tr, ti = cos * di + sin * dr, cos * dr - sin * di
    return (ei + ti, er - tr), (ti - ei, er + tr)


def _turned(number: _Complex, turn: Memory) -> _Complex:
    (re, im), cos, sin = number, turn.scalar(0), turn.scalar(1)
    return re * cos + im * sin, re * sin - im * cos


def _scaled(number: _Complex, scale: Memory) -> _Complex:
    return number[0] * scale.scalar(), number[1] * scale.scalar()


@step(4)
def ends(both: Memory, total: Memory, difference: Memory, scale: Memory) -> None:
    """The sum and the difference of two rows, which are the first and the last bin."""
    one, two = both.complex()
    total.put((one + two) * scale.scalar())
    difference.put((one - two) * scale.scalar())


@step(4)
def split_fft(a: Memory, b: Memory, angle: Memory, scale: Memory) -> None:
    """Bins k and B/2 - k of the real transform from those of the complex one."""
    one, two = _split(a.complex(), b.complex(), angle)
    a.put_complex(_scaled(one, scale))
    b.put_complex(_scaled(two, scale))


@step(4)
def join_fft(a: Memory, b: Memory, angle: Memory, scale: Memory) -> None:
    """And back."""
    one, two = _join(_scaled(a.complex(), scale), _scaled(b.complex(), scale), angle)
    a.put_complex(one)
    b.put_complex(two)


@step(5)
def split_dct(a: Memory, b: Memory, angle: Memory, turn: Memory, other: Memory) -> None:
    """As `split_fft`, and turned by a quarter sample."""
    one, two = _split(a.complex(), b.complex(), angle)
    a.put_complex(_turned(one, turn))
    b.put_complex(_turned(two, other))


@step(5)
def join_dct(a: Memory, b: Memory, angle: Memory, turn: Memory, other: Memory) -> None:
    """And back."""
    one, two = _join(_turned(a.complex(), turn), _turned(b.complex(), other), angle)
    a.put_complex(one)
    b.put_complex(two)


@step(4)
def load_rows(source: Memory, stride: Memory, rows: Memory, places: Memory) -> None:
    """Eight values of each of eight blocks, `stride` bytes apart, to the rows at these places."""
    columns = [source]
    for _ in range(LANES - 1):
        columns.append(columns[-1].further(stride.address))
    for at, row in enumerate(_transposed([column.row() for column in columns])):
        rows.further(places.index(at)).put(row)


@step(5)
def store_rows(
    rows: Memory, places: Memory, target: Memory, stride: Memory, weight: Memory
) -> None:
    """And back, times a weight; all NaN become one."""
    factor = weight.scalar()
    for row in _transposed([rows.further(places.index(at)).row() for at in range(LANES)]):
        target.put(_one_nan(row * factor))
        target = target.further(stride.address)


@step(5)
def add_rows(rows: Memory, places: Memory, target: Memory, stride: Memory, weight: Memory) -> None:
    """As `store_rows`, added to what is there."""
    factor = weight.scalar()
    for row in _transposed([rows.further(places.index(at)).row() for at in range(LANES)]):
        target.put(_one_nan(target.row() + row * factor))
        target = target.further(stride.address)


def _one_nan(row: _Row) -> _Row:
    builder = row.builder
    is_number = builder.fcmp_ordered("ord", row.value, row.value)
    nan = ir.Constant(_ROW, [float(np.nan)] * LANES)
    return _Row(builder, builder.select(is_number, row.value, nan))


def _transposed(rows: list[_Row]) -> list[_Row]:
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


def _shuffled(one: _Row, two: _Row, lanes: list[int]) -> _Row:
    mask = ir.Constant(ir.VectorType(_I32, LANES), lanes)
    return _Row(one.builder, one.builder.shuffle_vector(one.value, two.value, mask))
