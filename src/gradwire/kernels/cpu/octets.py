"""Operations on the bytes of codes and on the words of a stream, with exact types.

Memory is given by address: to cut an array, Numba counts who uses it, which takes longer than a
chunk of codes may.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.numpy_support import carray

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import expression

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def _build_lowest_bit(builder: Any, word: Any) -> Any:
    return builder.cttz(word, ir.IntType(1)(1))


def _build_load(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _I64.as_pointer()), align=1)


def _build_store(builder: Any, address: Any, word: Any) -> Any:
    builder.store(word, builder.inttoptr(address, word.type.as_pointer()), align=1)
    return word


def _build_prefetch(builder: Any, address: Any) -> Any:
    place = builder.inttoptr(address, _I8.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [place.type, _I32, _I32, _I32])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
    builder.call(prefetch, [place, _I32(0), _I32(2), _I32(1)])  # to read it, from L2, data
    return address


def _build_copy(builder: Any, source: Any, target: Any, size: Any) -> Any:
    there, here = (builder.inttoptr(address, _I8.as_pointer()) for address in (target, source))
    cgutils.raw_memcpy(builder, there, here, size, 1)  # type: ignore[no-untyped-call]
    return size


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


_u8, _u16 = types.uint8, types.uint16
or8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.or_(x, y))
and8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.and_(x, y))
shl8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.shl(x, y))
shr8 = expression(_u8, (_u8, _u8), lambda b, x, y: b.lshr(x, y))
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
lowest_bit = expression(types.uint64, (types.uint64,), _build_lowest_bit)  # of a nonzero word
load64 = expression(types.uint64, (types.int64,), _build_load)  # of an address
store64 = expression(types.uint64, (types.int64, types.uint64), _build_store)
store32 = expression(types.uint32, (types.int64, types.uint32), _build_store)
reaching = expression(types.uint64, (types.int64, _u8), _build_reaching)  # which of 64 octets are
prefetch = expression(types.int64, (types.int64,), _build_prefetch)  # any address is safe
popcount = expression(types.uint64, (types.uint64,), lambda b, x: b.ctpop(x))
copy = expression(types.int64, (types.int64,) * 3, _build_copy)  # from an address to another: size


def _pointer(kind: Any, target: Any) -> Any:
    """A function that takes an address as that of numbers of this kind."""
    pointer: Any = types.CPointer(kind)  # type: ignore[no-untyped-call]
    return expression(pointer, (types.int64,), lambda b, x: b.inttoptr(x, target.as_pointer()))


byte_pointer, half_pointer = _pointer(_u8, _I8), _pointer(_u16, _I16)
int_pointer, word_pointer = _pointer(types.int32, _I32), _pointer(types.uint32, _I32)
float_pointer = _pointer(types.float32, ir.FloatType())


@jit
def octets_at(address, size):  # type: ignore[no-untyped-def]
    """The bytes at an address, as an array; nobody counts who uses it."""
    return carray(byte_pointer(address), size)
