"""The bit patterns of floats in Numba: their parts.

Patterns have 16 or 32 bits; shifts are int64, and the same for a whole loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import expression

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
