"""Operations with exact machine types, for the Numba kernels.

Numba widens the product of two uint32 to 64 bits and small integers to int64, which ruins
vectorization. Each function here is one LLVM expression on the types it names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F32 = ir.FloatType()


def expression(result: Any, arguments: tuple[Any, ...], build: Callable[..., Any]) -> Any:
    """A function of one LLVM expression, `build(builder, *values)`, with exact types."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, *values)

    def typed() -> Any:
        return result(*arguments), codegen

    typers: dict[int, Callable[..., Any]] = {  # Numba wants the arguments by name
        1: lambda typingctx, a: typed(),
        2: lambda typingctx, a, b: typed(),
        3: lambda typingctx, a, b, c: typed(),
        4: lambda typingctx, a, b, c, d: typed(),
        5: lambda typingctx, a, b, c, d, e: typed(),
        6: lambda typingctx, a, b, c, d, e, f: typed(),
    }
    return intrinsic(typers[len(arguments)])


def _build_mulhi(builder: Any, a: Any, b: Any) -> Any:
    product = builder.mul(builder.zext(a, _I64), builder.zext(b, _I64))
    return builder.trunc(builder.lshr(product, _I64(32)), _I32)


def build_nearest(builder: Any, a: Any) -> Any:
    """The whole number next to `a`."""
    kind = ir.FunctionType(_I32, [_F32])
    lrint = builder.module.declare_intrinsic("llvm.lrint", [_I32, _F32], kind)
    return builder.call(lrint, [a])


def _build_floor(builder: Any, scaled: Any, bias: Any, dither: Any) -> Any:
    total = builder.add(builder.add(scaled, bias), builder.zext(dither, _I32))
    return builder.trunc(builder.lshr(total, _I32(16)), _I8)


def _build_wrapped_floor(builder: Any, scaled: Any, zero: Any, dither: Any) -> Any:
    total = builder.add(scaled, builder.zext(dither, _I32))
    return builder.add(builder.trunc(builder.ashr(total, _I32(16)), _I8), zero)


def _build_exact_level(builder: Any, code: Any, zero: Any, dither: Any) -> Any:
    level = builder.shl(builder.sext(builder.sub(code, zero), _I32), _I32(17))
    twice = builder.shl(builder.zext(dither, _I32), _I32(1))
    return builder.sitofp(builder.sub(builder.add(level, _I32(65535)), twice), _F32)


def _build_whole(builder: Any, a: Any) -> Any:
    kind = ir.FunctionType(_F32, [_F32])
    return builder.call(builder.module.declare_intrinsic("llvm.rint", [_F32], kind), [a])


def _build_clip(builder: Any, a: Any, top: Any) -> Any:
    bottom = builder.fneg(top)
    a = builder.select(builder.fcmp_ordered("<", a, top), a, top)
    return builder.select(builder.fcmp_ordered(">", a, bottom), a, bottom)


def _build_level(builder: Any, code: Any, levels: Any) -> Any:
    return builder.sitofp(builder.sub(builder.zext(code, _I32), levels), _F32)


def _build_wide_level(builder: Any, low: Any, high: Any, zero: Any) -> Any:
    code = builder.or_(builder.zext(low, _I32), builder.shl(builder.zext(high, _I32), _I32(8)))
    return builder.sitofp(builder.sub(code, zero), _F32)


def _build_field(builder: Any, words: Any, code: Any, place: Any) -> Any:
    return builder.or_(words, builder.shl(builder.zext(code, _I32), place))


def _build_centred(builder: Any, product: Any, centre: Any) -> Any:
    return builder.sitofp(builder.sub(centre, builder.lshr(product, _I32(15))), _F32)


def _build_count_from(builder: Any, count: Any, value: Any, least: Any) -> Any:
    return builder.add(count, builder.zext(builder.icmp_signed(">=", value, least), _I32))


_u8, _u16, _u32, _i32, _f32 = types.uint8, types.uint16, types.uint32, types.int32, types.float32
fma = expression(types.float32, (types.float32,) * 3, lambda b, x, y, z: b.fma(x, y, z))
add32 = expression(_u32, (_u32, _u32), lambda b, x, y: b.add(x, y))
mul32 = expression(_u32, (_u32, _u32), lambda b, x, y: b.mul(x, y))
xor32 = expression(_u32, (_u32, _u32), lambda b, x, y: b.xor(x, y))
mulhi32 = expression(_u32, (_u32, _u32), _build_mulhi)
magnitude_bits = expression(_i32, (_i32,), lambda b, x: b.and_(x, _I32(0x7FFFFFFF)))
as_float = expression(_f32, (_i32,), lambda b, x: b.bitcast(x, _F32))
as_bits = expression(_i32, (_f32,), lambda b, x: b.bitcast(x, _I32))
nearest = expression(_i32, (_f32,), build_nearest)
whole = expression(_f32, (_f32,), _build_whole)
clip = expression(_f32, (_f32, _f32), _build_clip)
floor16 = expression(_u8, (_i32, _i32, _u16), _build_floor)
wrapped_floor = expression(_u8, (_i32, _u8, _u16), _build_wrapped_floor)
exact_level = expression(_f32, (_u8, _u8, _u16), _build_exact_level)
level = expression(_f32, (_u8, _i32), _build_level)
wide_level = expression(_f32, (_u8, _u8, _i32), _build_wide_level)
bf16_bits = expression(_i32, (_u16,), lambda b, x: b.shl(b.zext(x, _I32), _I32(16)))
count_from = expression(_i32, (_i32,) * 3, _build_count_from)  # one more if value >= least
fp16_bits = expression(_i32, (types.int16,), lambda b, x: b.zext(x, _I32))
put_field = expression(_u32, (_u32, _u8, _u32), _build_field)
shr32 = expression(_u32, (_u32, _u32), lambda b, x, y: b.lshr(x, y))
and32 = expression(_u32, (_u32, _u32), lambda b, x, y: b.and_(x, y))
signed_difference = expression(_f32, (_u32, _u32), lambda b, x, y: b.sitofp(b.sub(x, y), _F32))
add16 = expression(_u16, (_u16, _u16), lambda b, x, y: b.add(x, y))
add_code = expression(_u16, (_u16, _u8), lambda b, x, y: b.add(x, b.zext(y, _I16)))
low8 = expression(_u8, (_u16,), lambda b, x: b.trunc(x, _I8))
high8 = expression(_u8, (_u16,), lambda b, x: b.trunc(b.lshr(x, _I16(8)), _I8))
high_half = expression(_u32, (_u16,), lambda b, x: b.shl(b.zext(x, _I32), _I32(16)))
centred = expression(_f32, (_u32, _i32), _build_centred)
