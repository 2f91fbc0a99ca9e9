"""The steps of rotations, see `formats/rotation.py`, in LLVM's own terms.

A *row* is 16 float32, next to each other. Steps take a few rows from L1 to registers and back, and
do there what they can. Arguments are addresses, in bytes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gradwire.kernels.cpu.lanes import Memory, step
from gradwire.kernels.formats.rotation import LANES, LARGEST

_I8, _I32, _I64, _F32 = (*(ir.IntType(bits) for bits in (8, 32, 64)), ir.FloatType())
OCTETS, WORDS, FLOATS = (ir.VectorType(kind, LANES) for kind in (_I8, _I32, _F32))
ROW = 4 * LANES
"""Bytes."""
GROUP = 8
"""Rows that a step takes at once."""
SIGN = 1 << 31


class Rows:
    """Loads, stores and arithmetic of rows at an address."""

    def __init__(self, memory: Memory) -> None:
        self.builder, self.address = memory.builder, memory.address

    def _pointer(self, nbytes: Any, kind: Any) -> Any:
        nbytes = _I64(nbytes) if isinstance(nbytes, int) else nbytes
        place = self.builder.add(self.address, nbytes)
        return self.builder.inttoptr(place, kind.as_pointer())

    def load(self, nbytes: Any = 0, kind: Any = FLOATS, align: int = 4) -> Any:
        return self.builder.load(self._pointer(nbytes, kind), align=align)

    def store(self, value: Any, nbytes: Any = 0, align: int = 4) -> None:
        self.builder.store(value, self._pointer(nbytes, value.type), align=align)

    def load_all(self) -> list[Any]:
        return [self.load(ROW * i) for i in range(GROUP)]

    def store_all(self, rows: list[Any]) -> None:
        for i, row in enumerate(rows):
            self.store(row, ROW * i)

    def number(self, at: int = 0) -> Any:
        """The float there, in all lanes."""
        return _all_lanes(self.builder, self.load(4 * at, _F32), FLOATS)


def _all_lanes(builder: Any, number: Any, kind: Any) -> Any:
    unset = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(unset, number, _I32(0))
    return builder.shuffle_vector(first, unset, ir.Constant(WORDS, [0] * LANES))


def splat(value: int) -> Any:
    return ir.Constant(WORDS, [value] * LANES)


def splat_floats(value: float) -> Any:
    return ir.Constant(FLOATS, [value] * LANES)


def _turn_rows(builder: Any, rows: list[Any]) -> list[Any]:
    """Sums and differences of rows, at distances of 1, 2, ... of them."""
    distance = 1
    while distance < len(rows):
        for i in range(len(rows)):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                rows[i], rows[i + distance] = builder.fadd(a, b), builder.fsub(a, b)
        distance *= 2
    return rows


def _turner(count: int) -> Any:
    @step(2)
    def turn(first: Memory, stride: Memory) -> None:
        rows, builder = Rows(first), first.builder
        places = [builder.mul(stride.address, _I64(i)) for i in range(count)]
        values = _turn_rows(builder, [rows.load(place) for place in places])
        for place, value in zip(places, values, strict=True):
            rows.store(value, place)

    return turn


turn_two, turn_four, turn_eight = (_turner(count) for count in (2, 4, 8))


def _turn_lanes(builder: Any, row: Any) -> Any:
    """Sums and differences at distances of 1, 2, 4 and 8 within a row."""
    for distance in (1, 2, 4, 8):
        lanes = ir.Constant(WORDS, [lane ^ distance for lane in range(LANES)])
        other = builder.shuffle_vector(row, row, lanes)
        mask = [SIGN if lane & distance else 0 for lane in range(LANES)]
        row = builder.fadd(other, flip(builder, row, ir.Constant(WORDS, mask)))
    return row


def flip(builder: Any, row: Any, mask: Any) -> Any:
    return builder.bitcast(builder.xor(builder.bitcast(row, WORDS), mask), FLOATS)


def _sign_masks(words: Memory, place: Memory) -> list[Any]:
    """Of eight rows, the first of which is the `place`-th of its tile."""
    builder = words.builder
    shift = builder.sub(_I32(24), builder.trunc(place.address, _I32))
    own = builder.shl(Rows(words).load(0, WORDS), _all_lanes(builder, shift, WORDS))
    shifted = [builder.shl(own, splat(GROUP - 1 - i)) for i in range(GROUP)]
    return [builder.and_(each, splat(SIGN)) for each in shifted]


@step(5)
def load_eight(source: Memory, target: Memory, words: Memory, place: Memory, state: Memory) -> None:
    """Eight rows, times a factor and with their signs, turned; their squares are added to sums.

    `state` has the factor in its first row, and then the sums.
    """
    builder, masks = source.builder, _sign_masks(words, place)
    given, sums, rows = Rows(source), Rows(state), []
    factor = sums.number()
    for i in range(GROUP):
        value = builder.fmul(given.load(ROW * i), factor)
        total = builder.fadd(sums.load(ROW * (i + 1)), builder.fmul(value, value))
        sums.store(total, ROW * (i + 1))
        rows.append(flip(builder, value, masks[i]))
    Rows(target).store_all(_turn_rows(builder, rows))


@step(3)
def mix_eight(rows: Memory, words: Memory, place: Memory) -> None:
    """Change the signs of eight rows; turn them, lanes first."""
    builder, masks = rows.builder, _sign_masks(words, place)
    pairs = zip(Rows(rows).load_all(), masks, strict=True)
    signed = [_turn_lanes(builder, flip(builder, row, mask)) for row, mask in pairs]
    Rows(rows).store_all(_turn_rows(builder, signed))


@step(1)
def unmix_eight(rows: Memory) -> None:
    """Turn eight rows, lanes first."""
    turned = [_turn_lanes(rows.builder, row) for row in Rows(rows).load_all()]
    Rows(rows).store_all(_turn_rows(rows.builder, turned))


@step(3)
def flip_eight(rows: Memory, words: Memory, place: Memory) -> None:
    """Change the signs of eight rows, and turn them."""
    pairs = zip(Rows(rows).load_all(), _sign_masks(words, place), strict=True)
    signed = [flip(rows.builder, row, mask) for row, mask in pairs]
    Rows(rows).store_all(_turn_rows(rows.builder, signed))


def _finisher(adds: bool) -> Any:
    @step(5)
    def finish(rows: Memory, target: Memory, words: Memory, place: Memory, factor: Memory) -> None:
        """Eight rows with their signs, scaled; what is too large becomes the largest."""
        builder, weight = rows.builder, Rows(factor).number()
        pairs = zip(Rows(rows).load_all(), _sign_masks(words, place), strict=True)
        for i, (row, mask) in enumerate(pairs):
            value = builder.fmul(flip(builder, row, mask), weight)
            for sign, bound in (("<", LARGEST), (">", -LARGEST)):
                inside = builder.fcmp_ordered(sign, value, splat_floats(bound))
                value = builder.select(inside, value, splat_floats(bound))
            if adds:
                value = builder.fadd(Rows(target).load(ROW * i), value)
            Rows(target).store(value, ROW * i)

    return finish


finish_write, finish_add = _finisher(adds=False), _finisher(adds=True)


@step(1)
def fold(state: Memory) -> None:
    """Replace the first number by the total of the sums after it, added by halves."""
    builder, rows = state.builder, Rows(state)
    sums = [rows.load(ROW * (i + 1)) for i in range(GROUP)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [builder.fadd(sums[i], sums[half + i]) for i in range(half)]
    total = sums[0]
    for distance in (8, 4, 2, 1):
        lanes = [lane ^ distance for lane in range(LANES)]
        other = builder.shuffle_vector(total, total, ir.Constant(WORDS, lanes))
        total = builder.fadd(total, other)
    rows.store(builder.extract_element(total, _I32(0)))
