"""Fourier transforms of rows of complex numbers in Triton, level after level.

A program has whole rows in registers. The operands of a butterfly are brought together by cutting
the row into dimensions of two and splitting these off, which takes them through shared memory.
"""

from __future__ import annotations

import triton.language as tl

from gradwire.kernels import twiddles
from gradwire.kernels.gpu.blocks import levels_of
from gradwire.kernels.gpu.compiler import jit, static

_first_level = static(twiddles.first_level)


@static
def _levels(half: int) -> int:
    """How many levels multiply."""
    return (half.bit_length() - _first_level(half).bit_length()) // 2  # type: ignore[no-any-return]


@static
def _row_of(half: int, level: int) -> int:
    """The first row of a level's twiddles."""
    return _first_level(half) * ((1 << 2 * level) - 1) // 3  # type: ignore[no-any-return]


@jit
def reversed_bits(place, HALF: tl.constexpr):
    """The bits of a place, the other way round."""
    turned = place * 0
    for bit in tl.static_range(levels_of(HALF)):
        turned |= ((place >> bit) & 1) << (levels_of(HALF) - 1 - bit)
    return turned


@jit
def _two(values):
    a, b = tl.split(tl.reshape(values, (values.shape[0], values.shape[1] // 2, 2)))
    return tl.reshape(tl.join(a + b, a - b), values.shape)


@jit
def _parts(values, WIDTH: tl.constexpr):
    """The four operands of each butterfly, WIDTH apart."""
    count: tl.constexpr = values.shape[0] * values.shape[1] // (4 * WIDTH)
    apart = tl.permute(tl.reshape(values, (count, 2, 2, WIDTH)), (0, 3, 1, 2))
    even, odd = tl.split(apart)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@jit
def _whole(first, second, third, fourth):
    """The inverse of `_parts`, but for the shape."""
    return tl.permute(tl.join(tl.join(first, third), tl.join(second, fourth)), (0, 2, 3, 1))


@jit
def _four(a, b, shape: tl.constexpr):
    """Butterflies of four of the real parts `a` and the imaginary parts `b`."""
    pr, qr, pi, qi = a[0] - a[1], a[2] - a[3], b[0] - b[1], b[2] - b[3]
    sr, tr, si, ti = a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3]
    re = tl.reshape(_whole(sr + tr, pr + qi, sr - tr, pr - qi), shape)
    return re, tl.reshape(_whole(si + ti, pi - qr, si - ti, pi + qr), shape)


@jit
def _twisted(re, im, table, WIDTH: tl.constexpr, angles: tl.constexpr):
    """Operands times a number of angles, but for the first of each row."""
    k = tl.arange(0, WIDTH)[None, :]
    cos, sin = tl.load(table + 6 * k + 2 * angles - 2), tl.load(table + 6 * k + 2 * angles - 1)
    return tl.where(k > 0, re * cos + im * sin, re), tl.where(k > 0, im * cos - re * sin, im)


@jit
def _level(re, im, table, WIDTH: tl.constexpr):
    a, b = _parts(re, WIDTH), _parts(im, WIDTH)
    second = _twisted(a[1], b[1], table, WIDTH, 2)
    third = _twisted(a[2], b[2], table, WIDTH, 1)
    fourth = _twisted(a[3], b[3], table, WIDTH, 3)
    a, b = (a[0], second[0], third[0], fourth[0]), (b[0], second[1], third[1], fourth[1])
    return _four(a, b, re.shape)


@jit
def fourier(re, im, table):
    """The complex transform of rows whose places are in the order of reversed bits."""
    half: tl.constexpr = re.shape[1]
    if _first_level(half) == 2:
        re, im = _two(re), _two(im)
    if _first_level(half) == 4:
        re, im = _four(_parts(re, 1), _parts(im, 1), re.shape)
    for level in tl.static_range(_levels(half)):
        rows = table + 6 * _row_of(half, level)
        re, im = _level(re, im, rows, _first_level(half) << (2 * level))
    return re, im
