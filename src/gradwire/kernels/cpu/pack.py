"""Packing of the codes of a tile in Numba, as `formats/layout.py` has it."""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.octets import and8, or8, shl8, shr8


@jit
def pack_tile(codes, size, width, packed):  # type: ignore[no-untyped-def]
    """Digit by digit; the codes are uint8."""
    start, shift = 0, np.uint8(0)
    for bits in (8, 4, 2, 1):
        if width & bits:
            mask = np.uint8((1 << bits) - 1)
            stride = size * bits // 8
            out = packed[start : start + stride]
            for k in range(stride):
                out[k] = and8(shr8(codes[k], shift), mask)
            for m in range(1, 8 // bits):
                part = codes[m * stride : (m + 1) * stride]
                place = np.uint8(bits * m)
                for k in range(stride):
                    out[k] = or8(out[k], shl8(and8(shr8(part[k], shift), mask), place))
            start += stride
            shift = np.uint8(shift + bits)


@jit
def unpack_tile(packed, size, width, codes):  # type: ignore[no-untyped-def]
    """The inverse of `pack_tile`."""
    start, shift = 0, np.uint8(0)
    for bits in (8, 4, 2, 1):
        if width & bits:
            mask = np.uint8((1 << bits) - 1)
            stride = size * bits // 8
            source = packed[start : start + stride]
            for m in range(8 // bits):
                part = codes[m * stride : (m + 1) * stride]
                place = np.uint8(bits * m)
                if shift == 0:
                    for k in range(stride):
                        part[k] = and8(shr8(source[k], place), mask)
                else:
                    for k in range(stride):
                        part[k] = or8(part[k], shl8(and8(shr8(source[k], place), mask), shift))
            start += stride
            shift = np.uint8(shift + bits)


@jit
def pack_wide(codes, size, width, packed, octets):  # type: ignore[no-untyped-def]
    """Pack a tile of uint16 codes: the low byte, then the rest; `octets` is room to work in."""
    for i in range(size):
        octets[i] = np.uint8(codes[i] & np.uint16(0xFF))
    pack_tile(octets, size, min(width, 8), packed)
    if width > 8:
        for i in range(size):
            octets[i] = np.uint8(codes[i] >> np.uint16(8))
        pack_tile(octets, size, width - 8, packed[size:])


@jit
def unpack_wide(packed, size, width, codes, octets):  # type: ignore[no-untyped-def]
    """The inverse of `pack_wide`."""
    unpack_tile(packed, size, min(width, 8), octets)
    for i in range(size):
        codes[i] = np.uint16(octets[i])
    if width > 8:
        unpack_tile(packed[size:], size, width - 8, octets)
        for i in range(size):
            codes[i] |= np.uint16(octets[i]) << np.uint16(8)
