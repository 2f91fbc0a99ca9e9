"""Range floats in Numba; the format is in `formats/rangefloat.py`."""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import range_code, range_pattern

_MAX_FINITE = 0x7F7FFFFF
_OCTAVE = 0x00800000


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
        codes[i] = range_code(patterns[i], half, by, under, least, top)


@jit
def decode_floats(codes, patterns, bits, shift, base):  # type: ignore[no-untyped-def]
    """What codes stand for."""
    limit, by = np.int32(_MAX_FINITE >> shift), np.int32(shift)
    top, under = np.int32((1 << (bits - 1)) - 1), np.int32(base - 1)
    for i in range(len(codes)):
        patterns[i] = range_pattern(codes[i], by, under, limit, top)
