"""The bit patterns of floats in Numba: their parts, and octets picked out of a row.

Patterns have 16 or 32 bits; shifts are int64, and the same for a whole loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradwire.kernels.cpu.compiler import has_feature, jit
from gradwire.kernels.cpu.intrinsics import expression
from gradwire.kernels.cpu.octets import lowest_bit, reaching

_u8, _i64 = types.uint8, types.int64
_intrinsic: Any = intrinsic
_I8, _I16 = ir.IntType(8), ir.IntType(16)


def _codegen(build: Callable[..., Any]) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, *values)

    return codegen


def _narrowed(builder: Any, value: Any, kind: Any) -> Any:
    return value if value.type == kind else builder.trunc(value, kind)


def _mask(builder: Any, size: Any) -> Any:
    return builder.sub(builder.shl(size.type(1), size), size.type(1))


@_codegen
def _octet(builder: Any, pattern: Any, shift: Any) -> Any:
    return builder.trunc(builder.lshr(pattern, builder.trunc(shift, pattern.type)), _I8)


@_codegen
def _half(builder: Any, pattern: Any, shift: Any) -> Any:
    shifted = builder.lshr(pattern, builder.trunc(shift, pattern.type))
    return _narrowed(builder, shifted, _I16)


@_codegen
def _word(builder: Any, pattern: Any, mantissa: Any) -> Any:
    size = builder.trunc(mantissa, pattern.type)
    sign = builder.shl(builder.lshr(pattern, size.type(size.type.width - 1)), size)
    return builder.or_(sign, builder.and_(pattern, _mask(builder, size)))


@_codegen
def _pattern(builder: Any, word: Any, exponent: Any, mantissa: Any) -> Any:
    size = builder.trunc(mantissa, word.type)
    sign = builder.shl(builder.lshr(word, size), size.type(size.type.width - 1))
    middle = builder.shl(builder.zext(exponent, word.type), size)
    return builder.or_(builder.or_(sign, middle), builder.and_(word, _mask(builder, size)))


@_codegen
def _joined(builder: Any, word: Any, part: Any, shift: Any) -> Any:
    wide = part if part.type == word.type else builder.zext(part, word.type)
    return builder.or_(word, builder.shl(wide, builder.trunc(shift, word.type)))


@_codegen
def _is_set(builder: Any, pattern: Any) -> Any:
    return builder.zext(builder.icmp_unsigned("!=", pattern, pattern.type(0)), _I8)


@_codegen
def _count_set(builder: Any, count: Any, pattern: Any) -> Any:
    is_set = builder.icmp_unsigned("!=", pattern, pattern.type(0))
    return builder.add(count, builder.zext(is_set, count.type))


@_intrinsic
def octet(typingctx, pattern, shift):  # type: ignore[no-untyped-def]
    """Eight bits, from bit `shift` on."""
    return _u8(pattern, _i64), _octet


@_intrinsic
def half(typingctx, pattern, shift):  # type: ignore[no-untyped-def]
    """Sixteen bits, from bit `shift` on."""
    return types.uint16(pattern, _i64), _half


@_intrinsic
def word_of(typingctx, pattern, mantissa):  # type: ignore[no-untyped-def]
    """Sign and mantissa."""
    return pattern(pattern, _i64), _word


@_intrinsic
def pattern_of(typingctx, word, exponent, mantissa):  # type: ignore[no-untyped-def]
    """The inverse of `word_of`, with an exponent (uint8)."""
    return word(word, _u8, _i64), _pattern


@_intrinsic
def joined(typingctx, word, part, shift):  # type: ignore[no-untyped-def]
    """The bits of `word`, and those of `part`, from bit `shift` on."""
    return word(word, part, _i64), _joined


@_intrinsic
def is_set(typingctx, pattern):  # type: ignore[no-untyped-def]
    """1 if any bit is, else 0 (uint8)."""
    return _u8(pattern), _is_set


@_intrinsic
def count_set(typingctx, count, pattern):  # type: ignore[no-untyped-def]
    """One more if any bit is set (int32)."""
    return types.int32(types.int32, pattern), _count_set


def _build_code(b: Any, rank: Any, low: Any, high: Any, above: Any, top: Any) -> Any:
    below, beyond = b.sub(rank, low), b.sub(high, rank)
    code = b.select(b.icmp_unsigned("<", beyond, above), beyond, top)
    is_below = b.icmp_unsigned("<", below, b.sub(top, above))
    return b.select(is_below, b.add(below, above), code)


def _build_rank(b: Any, code: Any, low: Any, high: Any, above: Any) -> Any:
    is_above = b.icmp_unsigned("<", code, above)
    return b.select(is_above, b.sub(high, code), b.sub(b.add(low, code), above))


add_gain = expression(types.int16, (types.int16,) * 3, lambda b, x, y, z: b.add(x, b.mul(y, z)))
code_of = expression(_u8, (_u8,) * 5, _build_code)  # of a rank
rank_of = expression(_u8, (_u8,) * 4, _build_rank)  # of a code


@jit
def wipe(values, start, stop):  # type: ignore[no-untyped-def]
    for i in range(start, stop):
        values[i] = 0


@jit
def copy(values, number, out):  # type: ignore[no-untyped-def]
    for i in range(number):
        out[i] = values[i]


_ROW = ir.VectorType(_I8, 64)


def _build_row(name: str, *, keeps: bool) -> Callable[[Any, Any, Any, Any, Any], Any]:
    """Sixty-four octets, those with flags of at least `least` moved to, or from, the first ones.

    If it `keeps`, other octets of `out` stay as they are.
    """

    def build(b: Any, octets: Any, flags: Any, least: Any, out: Any) -> Any:
        places = [b.inttoptr(address, _ROW.as_pointer()) for address in (octets, flags, out)]
        given, reached = (b.load(place, align=1) for place in places[:2])
        unset, lane = ir.Constant(_ROW, ir.Undefined), ir.IntType(32)
        first = b.insert_element(unset, least, lane(0))
        wanted = b.shuffle_vector(first, unset, ir.Constant(ir.VectorType(lane, 64), [0] * 64))
        found = b.icmp_unsigned(">=", reached, wanted)
        kind = ir.FunctionType(_ROW, [_ROW, _ROW, found.type])
        move = b.module.declare_intrinsic(f"llvm.x86.avx512.mask.{name}.v64i8", (), kind)
        others = b.load(places[2], align=1) if keeps else ir.Constant(_ROW, [0] * 64)
        b.store(b.call(move, [given, others, found]), places[2], align=1)
        return b.ctpop(b.bitcast(found, ir.IntType(64)))

    return build


_compress = expression(_i64, (_i64, _i64, _u8, _i64), _build_row("compress", keeps=False))
_expand = expression(_i64, (_i64, _i64, _u8, _i64), _build_row("expand", keeps=True))


@jit
def _pick_rows(octets, flags, size, least, out):  # type: ignore[no-untyped-def]
    number = 0
    for first in range(0, size, 64):
        number += _compress(
            octets.ctypes.data + first, flags.ctypes.data + first, least, out.ctypes.data + number
        )
    return number


@jit
def _put_rows_back(octets, flags, size, least, out):  # type: ignore[no-untyped-def]
    number = 0
    for first in range(0, size, 64):
        number += _expand(
            octets.ctypes.data + number, flags.ctypes.data + first, least, out.ctypes.data + first
        )
    return number


@jit
def _pick_single(octets, flags, size, least, out):  # type: ignore[no-untyped-def]
    number = 0
    for first in range(0, size, 64):
        found = reaching(flags.ctypes.data + first, least)
        while found:
            out[number] = octets[first + np.int64(lowest_bit(found))]
            number += 1
            found &= found - np.uint64(1)
    return number


@jit
def _put_single_back(octets, flags, size, least, out):  # type: ignore[no-untyped-def]
    number = 0
    for first in range(0, size, 64):
        found = reaching(flags.ctypes.data + first, least)
        while found:
            out[first + np.int64(lowest_bit(found))] = octets[number]
            number += 1
            found &= found - np.uint64(1)
    return number


_MOVES_ROWS = has_feature("avx512vbmi2")
pick = _pick_rows if _MOVES_ROWS else _pick_single
"""Move the octets whose flags are at least `least` to the front; how many they are.

`out` may be `octets`. Beyond `size`, flags are less up to a multiple of 64, and arrays have room
for 64 octets more.
"""
put_back = _put_rows_back if _MOVES_ROWS else _put_single_back
"""The inverse, which leaves other octets of `out` alone: how many there were."""
