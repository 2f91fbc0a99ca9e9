"""Octets picked out of a row by their flags, and put back, in Numba.

Some processors move sixty-four of them in one instruction; others take one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from gradwire.kernels.cpu.compiler import has_feature, jit
from gradwire.kernels.cpu.intrinsics import expression
from gradwire.kernels.cpu.octets import lowest_bit, reaching

_u8, _i64 = types.uint8, types.int64
_ROW = ir.VectorType(ir.IntType(8), 64)


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
