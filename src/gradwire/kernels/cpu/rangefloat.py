"""Range floats in Numba; the format is in `formats/rangefloat.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import expression

_MAX_FINITE = 0x7F7FFFFF
_OCTAVE = 0x00800000
_I16, _I32 = ir.IntType(16), ir.IntType(32)


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


_range_code = expression(types.uint16, (types.int32,) * 6, _build_range_code)
_range_pattern = expression(types.int32, (types.uint16, *(types.int32,) * 4), _build_range_pattern)


@jit
def fit_base(largest, bits, shift):  # type: ignore[no-untyped-def]
    """The base for values whose largest magnitude has this bit pattern."""
    top = min(largest + (1 << (shift - 1)), _MAX_FINITE) >> shift
    return max(np.int64(1), top - (1 << (bits - 1)) + 2)


@jit
def is_base(base, bits, shift):  # type: ignore[no-untyped-def]
    """Are all values finite?"""
    return base >= 1 and base + (1 << (bits - 1)) - 2 <= _MAX_FINITE >> shift


@jit
def _half(pattern):  # type: ignore[no-untyped-def]
    """The bit pattern of half a float that is even; below two octaves they are plain multiples."""
    return pattern - _OCTAVE if pattern >= 2 * _OCTAVE else pattern >> 1


@jit
def encode_floats(patterns, codes, bits, shift, base):  # type: ignore[no-untyped-def]
    """Round finite floats to codes, which are uint16."""
    half, least = np.int32(1 << (shift - 1)), np.int32(_half(base << shift))
    top, under, by = np.int32((1 << (bits - 1)) - 1), np.int32(base - 1), np.int32(shift)
    for i in range(len(patterns)):
        codes[i] = _range_code(patterns[i], half, by, under, least, top)


@jit
def decode_floats(codes, patterns, bits, shift, base):  # type: ignore[no-untyped-def]
    """What codes stand for."""
    limit, by = np.int32(_MAX_FINITE >> shift), np.int32(shift)
    top, under = np.int32((1 << (bits - 1)) - 1), np.int32(base - 1)
    for i in range(len(codes)):
        patterns[i] = _range_pattern(codes[i], by, under, limit, top)
