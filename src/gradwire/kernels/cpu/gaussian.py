"""Rows of rotated values to codes and back, in LLVM's own terms, as in `cpu/butterflies.py`.

Rows that are packed together lie `APART` from each other: eight of them, from the first on, share
their bytes in any width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir

from gradwire.kernels.cpu.butterflies import (
    FLOATS,
    GROUP,
    OCTETS,
    ROW,
    SIGN,
    WORDS,
    Rows,
    flip,
    splat,
    splat_floats,
)
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.lanes import Memory, step
from gradwire.kernels.formats.layout import TILE, digits
from gradwire.kernels.formats.rotation import LANES, LEVELS

APART = TILE // LANES // GROUP
_I64 = ir.IntType(64)
_TILE = 4 * TILE


def _by_bits(bits: Memory, emit: Callable[[int], None]) -> None:
    """What is emitted for one width runs for that."""
    for each in LEVELS:
        with bits.builder.if_then(bits.builder.icmp_signed("==", bits.address, _I64(each))):
            emit(each)


@step(5)
def _quantize(rows: Memory, packed: Memory, bounds: Memory, sums: Memory, bits: Memory) -> None:
    """Eight rows to codes; |y| q is added to sums."""

    def emit(width: int) -> None:
        codes = []
        for i in range(GROUP):
            pattern = Rows(rows).load(ROW * APART * i, WORDS)
            code, product = _code(rows.builder, pattern, Rows(bounds), width)
            slot = ROW * APART * (i % 2)
            Rows(sums).store(rows.builder.fadd(Rows(sums).load(slot), product), slot)
            codes.append(code)
        _pack(rows.builder, codes, packed, width)

    _by_bits(bits, emit)


@step(4)
def _write(packed: Memory, rows: Memory, units: Memory, bits: Memory) -> None:
    """Eight rows from codes: `units` has what each positive level stands for."""
    _by_bits(bits, lambda width: _unpack(packed, Rows(rows), Rows(units), width, adds=False))


@step(4)
def _add(packed: Memory, rows: Memory, units: Memory, bits: Memory) -> None:
    """The same, added to what is there."""
    _by_bits(bits, lambda width: _unpack(packed, Rows(rows), Rows(units), width, adds=True))


def _code(builder: Any, pattern: Any, bounds: Rows, bits: int) -> tuple[Any, Any]:
    """The code of a row, and |y| q."""
    value = builder.bitcast(builder.and_(pattern, splat(SIGN - 1)), FLOATS)
    code = builder.shl(builder.lshr(pattern, splat(31)), splat(bits - 1))
    level = splat_floats(LEVELS[bits][0])
    for k in range(1, len(LEVELS[bits])):
        above = builder.fcmp_ordered(">", value, bounds.number(k - 1))
        code = builder.add(code, builder.zext(above, WORDS))
        level = builder.select(above, splat_floats(LEVELS[bits][k]), level)
    return code, builder.fmul(value, level)


def _digits(bits: int) -> Iterator[tuple[int, int, list[int], int]]:
    """Bits of a digit, how far from the lowest it is, rows of a group that share its bytes, and
    where these are."""
    start = 0
    for size, shift in digits(bits):
        between = GROUP * size // 8
        for first in range(between):
            yield size, shift, list(range(first, GROUP, between)), start + LANES * APART * first
        start += TILE * size // 8


def _pack(builder: Any, codes: list[Any], packed: Memory, bits: int) -> None:
    for size, shift, rows, place in _digits(bits):
        octets = splat(0)
        for i, row in enumerate(rows):
            digit = builder.and_(builder.lshr(codes[row], splat(shift)), splat((1 << size) - 1))
            octets = builder.or_(octets, builder.shl(digit, splat(size * i)))
        Rows(packed).store(builder.trunc(octets, OCTETS), place, align=1)


def _unpack(packed: Memory, rows: Rows, units: Rows, bits: int, *, adds: bool) -> None:
    builder, codes = packed.builder, [splat(0)] * GROUP
    for size, shift, group, place in _digits(bits):
        octets = builder.zext(Rows(packed).load(place, OCTETS, align=1), WORDS)
        for i, row in enumerate(group):
            digit = builder.and_(builder.lshr(octets, splat(size * i)), splat((1 << size) - 1))
            codes[row] = builder.or_(codes[row], builder.shl(digit, splat(shift)))
    for i, code in enumerate(codes):
        value, place = _value(builder, code, units, bits), ROW * APART * i
        rows.store(builder.fadd(rows.load(place), value) if adds else value, place)


def _value(builder: Any, code: Any, units: Rows, bits: int) -> Any:
    value, index = units.number(0), builder.and_(code, splat((1 << (bits - 1)) - 1))
    for k in range(1, len(LEVELS[bits])):
        reached = builder.icmp_unsigned(">=", index, splat(k))
        value = builder.select(reached, units.number(k), value)
    return flip(builder, value, builder.shl(builder.lshr(code, splat(bits - 1)), splat(31)))


@jit
def quantize_rows(rows, packed, size, bits, bounds, sums):  # type: ignore[no-untyped-def]
    """Codes of `size` values, in whole tiles."""
    for t in range(size // TILE):
        for r in range(APART):
            codes = packed + t * TILE // 8 * bits + r * LANES
            _quantize(rows + t * _TILE + r * ROW, codes, bounds, sums + r * ROW, bits)


@jit
def dequantize_rows(packed, rows, size, bits, units, adds):  # type: ignore[no-untyped-def]
    """And back, written or added."""
    for t in range(size // TILE):
        for r in range(APART):
            codes, target = packed + t * TILE // 8 * bits + r * LANES, rows + t * _TILE + r * ROW
            if adds:
                _add(codes, target, units, bits)
            else:
                _write(codes, target, units, bits)
