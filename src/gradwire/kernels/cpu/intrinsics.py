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


def _build_nearest(builder: Any, a: Any) -> Any:
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


def _build_lowest_bit(builder: Any, word: Any) -> Any:
    return builder.cttz(word, ir.IntType(1)(1))


def _build_count_from(builder: Any, count: Any, value: Any, least: Any) -> Any:
    return builder.add(count, builder.zext(builder.icmp_signed(">=", value, least), _I32))


def _build_to_bfloat16(builder: Any, value: Any, dither: Any) -> Any:
    total = builder.add(builder.bitcast(value, _I32), builder.zext(dither, _I32))
    half = builder.trunc(builder.lshr(total, _I32(16)), _I16)
    return builder.select(builder.fcmp_unordered("uno", value, value), _I16(0x7FC0), half)


def _build_to_float16(builder: Any, value: Any, dither: Any) -> Any:
    bits, noise = builder.bitcast(value, _I32), builder.zext(dither, _I32)
    magnitude = builder.and_(bits, _I32(0x7FFFFFFF))
    normal = builder.lshr(builder.add(magnitude, builder.lshr(noise, _I32(3))), _I32(13))
    normal = builder.sub(normal, _I32(112 << 10))
    is_huge = builder.icmp_signed(">", normal, _I32(0x7C00))
    normal = builder.select(is_huge, _I32(0x7C00), normal)
    is_small = builder.icmp_unsigned("<", magnitude, _I32(0x38800000))
    small = builder.bitcast(builder.select(is_small, magnitude, _I32(0)), _F32)
    steps = _build_nearest(builder, builder.fmul(small, _F32(2.0**40)))
    small = builder.lshr(builder.add(steps, noise), _I32(16))
    sign = builder.and_(builder.lshr(bits, _I32(16)), _I32(0x8000))
    half = builder.trunc(builder.or_(sign, builder.select(is_small, small, normal)), _I16)
    return builder.select(builder.fcmp_unordered("uno", value, value), _I16(0x7E00), half)


def _build_load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _I64.as_pointer()), align=1)


def _build_store(builder: Any, address: Any, word: Any) -> Any:
    builder.store(word, builder.inttoptr(address, _I64.as_pointer()), align=1)
    return word


def _build_reaching(builder: Any, address: Any, least: Any) -> Any:
    row = ir.VectorType(_I8, 64)
    octets = builder.load(builder.inttoptr(address, row.as_pointer()), align=1)
    unset = ir.Constant(row, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(_I32, 64), [0] * 64)
    wanted = builder.shuffle_vector(builder.insert_element(unset, least, _I32(0)), unset, lanes)
    return builder.bitcast(builder.icmp_unsigned(">=", octets, wanted), _I64)


def _build_reaches(builder: Any, value: Any, least: Any) -> Any:
    return builder.zext(builder.icmp_unsigned(">=", value, least), _I8)


def _build_magnitude(builder: Any, code: Any, zero: Any) -> Any:
    value = builder.sub(code, zero)
    is_negative = builder.icmp_signed("<", value, _I8(0))
    return builder.select(is_negative, builder.neg(value), value)


def _build_folded(builder: Any, code: Any, zero: Any) -> Any:
    value = builder.sub(code, zero)
    return builder.xor(value, builder.ashr(value, _I8(7)))


def _build_smaller(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_unsigned("<", a, b), a, b)


def _build_field_of(builder: Any, code: Any, zero: Any, top: Any) -> Any:
    value = builder.sub(code, zero)
    value = builder.select(builder.icmp_signed(">", value, top), top, value)
    bottom = builder.neg(top)
    return builder.select(builder.icmp_signed("<", value, bottom), bottom, value)


def _build_join(builder: Any, low: Any, high: Any, place: Any) -> Any:
    return builder.or_(low, builder.shl(builder.zext(high, _I16), place))


def _build_signed_digit(builder: Any, digit: Any, signs: Any, zero: Any) -> Any:
    is_negative = builder.icmp_unsigned("!=", builder.and_(signs, _I8(1)), _I8(0))
    value = builder.select(is_negative, builder.neg(digit), digit)
    return builder.add(value, zero)


def _build_next_signs(builder: Any, digit: Any, signs: Any) -> Any:
    is_zero = builder.icmp_unsigned("==", digit, _I8(0))
    return builder.select(is_zero, signs, builder.lshr(signs, _I8(1)))


def _build_unfolded(builder: Any, folded: Any, sign: Any, zero: Any) -> Any:
    return builder.add(builder.xor(folded, builder.neg(sign)), zero)


def _build_range_code(
    b: Any, x: Any, half: Any, shift: Any, under: Any, least: Any, top: Any
) -> Any:
    magnitude = b.and_(x, _I32(0x7FFFFFFF))
    code = b.sub(b.ashr(b.add(magnitude, half), shift), under)
    code = b.select(b.icmp_signed(">", code, _I32(1)), code, _I32(1))
    code = b.select(b.icmp_signed("<", code, top), code, top)
    code = b.select(b.icmp_signed("<", x, _I32(0)), b.add(code, top), code)
    code = b.select(b.icmp_signed("<", magnitude, least), _I32(0), code)
    return b.trunc(code, _I16)


def _build_range_pattern(b: Any, code: Any, shift: Any, under: Any, limit: Any, top: Any) -> Any:
    code = b.zext(code, _I32)
    is_negative = b.icmp_signed(">", code, top)
    step = b.add(b.select(is_negative, b.sub(code, top), code), under)
    step = b.select(b.icmp_signed("<", step, limit), step, limit)
    sign = b.select(is_negative, _I32(0x80000000), _I32(0))
    pattern = b.or_(b.shl(step, shift), sign)
    return b.select(b.icmp_signed("==", code, _I32(0)), _I32(0), pattern)


_u8, _u16, _u32, _i32, _f32 = types.uint8, types.uint16, types.uint32, types.int32, types.float32
fma = expression(types.float32, (types.float32,) * 3, lambda b, x, y, z: b.fma(x, y, z))
add32 = expression(_u32, (_u32, _u32), lambda b, x, y: b.add(x, y))
mul32 = expression(_u32, (_u32, _u32), lambda b, x, y: b.mul(x, y))
xor32 = expression(_u32, (_u32, _u32), lambda b, x, y: b.xor(x, y))
mulhi32 = expression(_u32, (_u32, _u32), _build_mulhi)
magnitude_bits = expression(_i32, (_i32,), lambda b, x: b.and_(x, _I32(0x7FFFFFFF)))
as_float = expression(_f32, (_i32,), lambda b, x: b.bitcast(x, _F32))
as_bits = expression(_i32, (_f32,), lambda b, x: b.bitcast(x, _I32))
nearest = expression(_i32, (_f32,), _build_nearest)
whole = expression(_f32, (_f32,), _build_whole)
clip = expression(_f32, (_f32, _f32), _build_clip)
floor16 = expression(_u8, (_i32, _i32, _u16), _build_floor)
wrapped_floor = expression(_u8, (_i32, _u8, _u16), _build_wrapped_floor)
exact_level = expression(_f32, (_u8, _u8, _u16), _build_exact_level)
level = expression(_f32, (_u8, _i32), _build_level)
wide_level = expression(_f32, (_u8, _u8, _i32), _build_wide_level)
or8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.or_(x, y))
and8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.and_(x, y))
shl8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.shl(x, y))
shr8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.lshr(x, y))
bf16_bits = expression(_i32, (_u16,), lambda b, x: b.shl(b.zext(x, _I32), _I32(16)))
lowest_bit = expression(types.uint64, (types.uint64,), _build_lowest_bit)  # of a nonzero word
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
to_bfloat16 = expression(_u16, (_f32, _u16), _build_to_bfloat16)
to_float16 = expression(types.int16, (_f32, _u16), _build_to_float16)
sub8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.sub(x, y))
add8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.add(x, y))
reaches = expression(_u8, (_u8, _u8), _build_reaches)  # 1 if value >= least
smaller = expression(_u8, (_u8, _u8), _build_smaller)
magnitude = expression(_u8, (_u8, _u8), _build_magnitude)  # of code - zero
folded = expression(_u8, (_u8, _u8), _build_folded)  # code - zero, or what is as far below -1
unfolded = expression(_u8, (_u8, _u8, _u8), _build_unfolded)
clipped = expression(_u8, (_u8, _u8, _u8), _build_field_of)  # code - zero, from -top to top
join16 = expression(_u16, (_u16, _u8, _u16), _build_join)
signed_digit = expression(_u8, (_u8, _u8, _u8), _build_signed_digit)  # by the lowest of the signs
next_signs = expression(
    _u8, (_u8, _u8), _build_next_signs
)  # without that of a digit, if it has one
load64 = expression(types.uint64, (types.int64,), _build_load)  # of an address
store64 = expression(types.uint64, (types.int64, types.uint64), _build_store)
reaching = expression(types.uint64, (types.int64, _u8), _build_reaching)  # which of 64 octets are
range_code = expression(_u16, (_i32,) * 6, _build_range_code)
range_pattern = expression(_i32, (_u16, *(_i32,) * 4), _build_range_pattern)
_bytes: Any = types.CPointer(types.uint8)  # type: ignore[no-untyped-call]
pointer = expression(_bytes, (types.int64,), lambda b, x: b.inttoptr(x, _I8.as_pointer()))
