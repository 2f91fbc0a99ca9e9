"""The range float: a float of N bits whose exponents are fitted to the data, for all backends.

The top 32 - s bits of a positive float32, as an integer q = bits >> s with s = 23 - m, are a float
of m mantissa bits: q + 1 is the next larger one, and the spacing doubles every 2^m steps. The
P = 2^(N-1) - 1 of them from `base` on are the positive values::

    code                 0    1      2         P             P + 1   ...  2 P
    q                    -    base   base + 1  base + P - 1  base    ...  base + P - 1
    value                0    eps                            -eps    ...

(2 P + 1 is not used.) Adding half a step before the shift rounds to nearest, magnitudes halfway
up; below eps = value of code 1, to 0 or eps, whichever is nearer. The range is fitted so that
code P is the largest magnitude of the data, rounded: it reaches P / 2^m octaves below it.
"""

from __future__ import annotations

import struct

_MAX_FINITE = 0x7F7FFFFF


def num_positive(bits: int) -> int:
    """P: how many positive codes there are.

    >>> num_positive(10)
    511
    """
    return (1 << bits - 1) - 1


def fitted_base(largest: int, *, bits: int, mantissa: int) -> int:
    """The base for data whose largest magnitude has the float32 bit pattern `largest`.

    >>> one = 0x3F800000
    >>> fitted_base(one, bits=10, mantissa=5) == (one >> 18) - 511 + 1
    True
    """
    shift = 23 - mantissa
    top = min(largest + (1 << shift - 1), _MAX_FINITE) >> shift
    return max(1, top - num_positive(bits) + 1)


def is_base(base: int, *, bits: int, mantissa: int) -> bool:
    """Could `fitted_base` have said so? Then all codes are finite."""
    return base >= 1 and base - 1 + num_positive(bits) <= _MAX_FINITE >> 23 - mantissa


def half_eps(base: int, mantissa: int) -> int:
    """The bit pattern of half the smallest positive value; it is exact."""
    (eps,) = struct.unpack("<f", struct.pack("<I", base << 23 - mantissa))
    (pattern,) = struct.unpack("<I", struct.pack("<f", eps / 2))
    return int(pattern)


def largest_code(mantissa: int) -> int:
    """The largest finite q."""
    return _MAX_FINITE >> 23 - mantissa
