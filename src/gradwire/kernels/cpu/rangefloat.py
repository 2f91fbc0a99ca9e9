"""Range floats in Numba."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.pack import pack_wide, unpack_wide
from gradwire.kernels.formats.layout import TILE
from gradwire.kernels.formats.rangefloat import half_eps, largest_code, num_positive


@jit
def _encode_tile(patterns, codes, shift, base, least, top):  # type: ignore[no-untyped-def]
    half = np.int32(1 << (shift - 1))
    for i in range(len(patterns)):
        magnitude = patterns[i] & np.int32(0x7FFFFFFF)
        code = min(max(((magnitude + half) >> shift) - base + 1, 1), top)
        code = code if patterns[i] >= 0 else code + top
        codes[i] = np.uint16(code if magnitude >= least else 0)


@jit
def _encode(patterns, packed, bits, shift, base, least, top):  # type: ignore[no-untyped-def]
    codes, octets = np.zeros(TILE, np.uint16), np.empty(TILE, np.uint8)
    for at in range(0, len(patterns), TILE):
        count = min(TILE, len(patterns) - at)
        codes[count:] = 0
        _encode_tile(patterns[at : at + count], codes, shift, base, least, top)
        pack_wide(codes, -(-count // 8) * 8, bits, packed[at // 8 * bits :], octets)


@jit
def _decode(packed, patterns, bits, shift, base, limit, top):  # type: ignore[no-untyped-def]
    codes, octets = np.empty(TILE, np.uint16), np.empty(TILE, np.uint8)
    for at in range(0, len(patterns), TILE):
        count = min(TILE, len(patterns) - at)
        unpack_wide(packed[at // 8 * bits :], -(-count // 8) * 8, bits, codes, octets)
        part = patterns[at : at + count]
        for i in range(count):
            code = np.int64(codes[i])
            sign = np.int64(code > top)
            step = min(code - sign * top - 1 + base, limit)
            pattern = (step << shift) | (-sign << 31)
            part[i] = np.int32(pattern if code > 0 else 0)


def range_float_encode(
    values: Tensor, codes: Tensor, *, bits: int, mantissa: int, base: int
) -> None:
    patterns, least = values.numpy().view(np.int32), half_eps(base, mantissa)
    _encode(patterns, codes.numpy(), bits, 23 - mantissa, base, least, num_positive(bits))


def range_float_decode(codes: Tensor, out: Tensor, *, bits: int, mantissa: int, base: int) -> None:
    patterns, limit = out.numpy().view(np.int32), largest_code(mantissa)
    _decode(codes.numpy(), patterns, bits, 23 - mantissa, base, limit, num_positive(bits))
