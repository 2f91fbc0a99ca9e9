"""Products of a large matrix and a few vectors, in Numba.

The matrix is in memory and the vectors are in the cache, so what counts is to go over the matrix
once: some rows together, and of these all factors, four at a time (`skinny.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu import skinny
from gradwire.kernels.cpu.calls import array
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.scales import tree_sum
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.formats.low_rank import FLOOR, GROUP, LANES

_ROWS = 4
"""Rows that share the loads of the factors."""

_dots, _dots_of_row = skinny.dots_of(_ROWS), skinny.dots_of(1)
_combine, _combine_row = skinny.combine_of(_ROWS), skinny.combine_of(1)
_add, _add_to_row = skinny.add_of(_ROWS), skinny.add_of(1)
_settle, _settle_row = skinny.settle_of(_ROWS), skinny.settle_of(1)


def row_products(x: Tensor, extra: Tensor | None, q: Tensor, out: Tensor) -> None:
    columns = x.shape[1]
    arguments = array(x), *_extra(x, extra), _filled_up(q), array(out)

    def run(start: int, stop: int) -> None:
        _row_products(*arguments, start // columns, stop // columns)

    if x.numel():
        over_threads(x.numel(), columns, run)
    else:
        out.zero_()


def column_products(x: Tensor, extra: Tensor | None, p: Tensor, out: Tensor) -> None:
    rows, columns = x.shape
    weights = _filled_up(p)
    sums = np.zeros((len(weights), columns), np.float32)
    arguments = array(x), *_extra(x, extra), weights, sums

    def run(start: int, stop: int) -> None:
        _column_products(*arguments, start // rows, stop // rows)

    if x.numel():
        over_threads(x.numel(), rows * LANES, run)
    array(out)[:] = sums[: len(p)]


def add_outer(p: Tensor, q: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    columns = out.shape[1]
    arguments = _filled_up(p), _filled_up(q), array(out)

    def run(start: int, stop: int) -> None:
        _add_outer(*arguments, start // columns, stop // columns, accumulate)

    if out.numel():
        over_threads(out.numel(), columns, run)


def settle_outer(x: Tensor, extra: Tensor, p: Tensor, q_mean: Tensor, q_own: Tensor) -> None:
    columns = x.shape[1]
    arguments = array(x), array(extra), *(_filled_up(each) for each in (p, q_mean, q_own))

    def run(start: int, stop: int) -> None:
        _settle_outer(*arguments, start // columns, stop // columns)

    if x.numel():
        over_threads(x.numel(), columns, run)


def orthonormalize(rows: Tensor, wanted: Tensor | None = None) -> None:
    if wanted is None or wanted:
        _orthonormalize(array(rows))


def _extra(x: Tensor, extra: Tensor | None) -> tuple[Any, int]:
    """What is to be added, and how far its rows lie apart: a row of zeros serves all."""
    if extra is None:
        return np.zeros(x.shape[1], np.float32), 0
    return array(extra).reshape(-1), x.shape[1]


def _filled_up(factors: Tensor) -> Any:
    """The factors, and zeros for a whole number of groups."""
    count, width = factors.shape
    if count % GROUP == 0 and factors.is_contiguous():
        return array(factors)
    filled = np.zeros((-(-count // GROUP) * GROUP, width), np.float32)
    filled[:count] = array(factors)
    return filled


@jit
def _row_products(x, extra, apart, q, out, first, last):  # type: ignore[no-untyped-def]
    width = x.shape[1]
    sums = np.empty((_ROWS, GROUP, LANES), np.float32)
    for i in range(first, last, _ROWS):
        count = min(_ROWS, last - i)
        left, right = x[i:].ctypes.data, extra[i * apart :].ctypes.data
        for at in range(0, len(q), GROUP):
            factors = q[at:].ctypes.data
            sums[:] = 0
            if count == _ROWS:
                place = sums.ctypes.data
                _dots(left, width, right, apart, factors, width, place, width)
            else:
                for row in range(count):
                    ours, theirs = left + 4 * row * width, right + 4 * row * apart
                    place = sums[row].ctypes.data
                    _dots_of_row(ours, 0, theirs, 0, factors, width, place, width)
            for row in range(count):
                for k in range(min(GROUP, len(out) - at)):
                    out[at + k, i + row] = tree_sum(sums[row, k], LANES)


@jit
def _column_products(x, extra, apart, p, out, first, last):  # type: ignore[no-untyped-def]
    """Columns `first` to `last`."""
    width, size = x.shape[1], last - first
    weights = np.empty((_ROWS, GROUP), np.float32)
    for i in range(0, len(x), _ROWS):
        count = min(_ROWS, len(x) - i)
        left, right = x[i:].ctypes.data + 4 * first, extra[i * apart + first :].ctypes.data
        for at in range(0, len(p), GROUP):
            target = out[at:].ctypes.data + 4 * first
            _gather(p, at, i, count, weights)
            if count == _ROWS:
                own = weights.ctypes.data
                _combine(left, width, right, apart, own, target, width, size)
            else:
                for row in range(count):
                    ours, theirs = left + 4 * row * width, right + 4 * row * apart
                    own = weights[row].ctypes.data
                    _combine_row(ours, 0, theirs, 0, own, target, width, size)


@jit
def _gather(p, at, first, count, weights):  # type: ignore[no-untyped-def]
    """The weights of a group of factors, from number `at` on, for some rows."""
    for row in range(count):
        for k in range(GROUP):
            weights[row, k] = p[at + k, first + row]


@jit
def _add_group(weights, q, at, place, width, count):  # type: ignore[no-untyped-def]
    """Add a group of factors to the rows at address `place`."""
    factors = q[at:].ctypes.data
    if count == _ROWS:
        _add(place, width, weights.ctypes.data, factors, width, width)
        return
    for row in range(count):
        _add_to_row(place + 4 * row * width, 0, weights[row].ctypes.data, factors, width, width)


@jit
def _add_outer(p, q, out, first, last, accumulate):  # type: ignore[no-untyped-def]
    weights = np.empty((_ROWS, GROUP), np.float32)
    for i in range(first, last, _ROWS):
        count = min(_ROWS, last - i)
        if not accumulate:
            out[i : i + count] = 0
        for at in range(0, len(p), GROUP):
            _gather(p, at, i, count, weights)
            _add_group(weights, q, at, out[i:].ctypes.data, out.shape[1], count)


@jit
def _settle_outer(x, extra, p, q_mean, q_own, first, last):  # type: ignore[no-untyped-def]
    width = x.shape[1]
    plus, minus = np.empty((_ROWS, GROUP), np.float32), np.empty((_ROWS, GROUP), np.float32)
    mean, own = q_mean.ctypes.data, q_own.ctypes.data
    for i in range(first, last, _ROWS):
        count = min(_ROWS, last - i)
        left, right = x[i:].ctypes.data, extra[i:].ctypes.data
        for at in range(0, len(p), GROUP):
            _gather(p, at, i, count, plus)
            for row in range(count):
                for k in range(GROUP):
                    minus[row, k] = -plus[row, k] if plus[row, k] != 0 else np.float32(0)
            if at:
                _add_group(plus, q_mean, at, left, width, count)
                _add_group(minus, q_own, at, right, width, count)
            elif count == _ROWS:
                ours, theirs = plus.ctypes.data, minus.ctypes.data
                _settle(left, right, width, ours, theirs, mean, own, width, width)
            else:
                for row in range(count):
                    ours, theirs = plus[row].ctypes.data, minus[row].ctypes.data
                    place = 4 * row * width
                    _settle_row(
                        left + place, right + place, 0, ours, theirs, mean, own, width, width
                    )


@jit
def _orthonormalize(rows):  # type: ignore[no-untyped-def]
    work, lanes = np.zeros((len(rows), rows.shape[1]), np.float64), np.empty(LANES, np.float64)
    for k in range(len(rows)):
        row = work[k]
        row[:] = rows[k]
        whole = _dot(row, row, lanes)
        for j in range(2 * k):
            other = work[j % k]
            factor = _dot(row, other, lanes)
            for i in range(len(row)):
                row[i] -= factor * other[i]
        square = _dot(row, row, lanes)
        if not np.isfinite(whole):
            row[:] = np.nan
        elif square <= whole * FLOOR:
            row[:] = 0
        else:
            norm = np.sqrt(square)
            for i in range(len(row)):
                row[i] /= norm
        rows[k] = row


@jit
def _dot(a, b, lanes):  # type: ignore[no-untyped-def]
    """`lanes` is room to work in."""
    lanes[:] = 0
    whole = len(a) // LANES * LANES
    for at in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += a[at + lane] * b[at + lane]
    for lane in range(len(a) - whole):
        lanes[lane] += a[whole + lane] * b[whole + lane]
    return tree_sum(lanes, LANES)
