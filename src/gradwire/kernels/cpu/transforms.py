"""Orthonormal transforms of blocks in Numba.

Eight blocks at a time are turned into rows, see `cpu/lanes.py`, and back at the end: the values of
a transform are in L1 from its first butterfly to its last. A few blocks that are left over, and
short ones, go through a buffer of eight.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import array
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.fourier import (
    add_rows,
    ends,
    four,
    join_dct,
    join_fft,
    load_rows,
    plain_four,
    plain_two,
    split_dct,
    split_fft,
    store_rows,
)
from gradwire.kernels.cpu.lanes import LANES
from gradwire.kernels.twiddles import first_level, pieces, reversed_bits, tables

_ROW = 4 * LANES
_COMPLEX = 2 * _ROW


class Plan(NamedTuple):
    """One transform as Numba takes it. Places are in bytes, from the first row on.

    `before` and `after` say where each value is, or each coefficient, before the butterflies and
    after them; `bins` where each complex number is while it is paired with another.
    """

    size: int
    plain: int
    dct: bool
    back: bool
    before: Any
    after: Any
    bins: Any
    levels: Any
    split: Any
    turns: Any
    scales: Any


@lru_cache(64)
def plan_of(size: int, dct: bool, back: bool) -> Plan:
    half, table = max(1, size // 2), tables(max(2, size))
    sample, spectrum = _sample_places(size, dct), _spectrum_places(size, dct)
    reverse = reversed_bits(half)
    natural = np.arange(half)
    if back:  # real and imaginary parts are exchanged for the transform, so they end so
        before, after = _places(spectrum, reverse), _places(sample, natural, swap=size > 1)
    else:
        before, after = _places(sample, reverse), _places(spectrum, natural)
    return Plan(
        size, first_level(half), dct, back, before, after,
        (reverse if back else natural) * _COMPLEX,
        table.levels, table.split, table.turns, np.array([table.scale, table.ends], np.float32),
    )  # fmt: skip


def _sample_places(size: int, dct: bool) -> tuple[Any, Any]:
    """(number, part) of each value among the complex numbers."""
    value = np.arange(size)
    if dct:  # the even values, then the odd ones backwards
        value = np.where(value % 2, size - 1 - value // 2, value // 2)
    return value // 2, value % 2


def _spectrum_places(size: int, dct: bool) -> tuple[Any, Any]:
    """(bin, part) of each coefficient; bin 0 also has the last one, which is real like itself."""
    half, at = max(1, size // 2), np.arange(size)
    if dct:
        return np.where(at < half, at, (size - at) % half), (at >= half) * (size > 1)
    last = (at == size - 1) & (size > 1)
    return (at + 1) // 2 % half, last | (at % 2 == 0) & (at > 0)


def _places(numbers: tuple[Any, Any], order: Any, *, swap: bool = False) -> Any:
    """Bytes from the first row; fewer than eight are filled up with rows that nothing is in."""
    number, part = numbers
    places = order[number] * _COMPLEX + (part ^ swap) * _ROW
    unused = np.arange(len(places), LANES) * _ROW
    return np.concatenate((places, unused)).astype(np.int64)


@jit
def _butterflies(rows, half, plain, angles):  # type: ignore[no-untyped-def]
    """The complex transform of `half` numbers, in place."""
    stop = rows + half * _COMPLEX
    if plain == 2:
        for a in range(rows, stop, 2 * _COMPLEX):
            plain_two(a, a + _COMPLEX)
    elif plain == 4:
        for a in range(rows, stop, 4 * _COMPLEX):
            plain_four(a, a + _COMPLEX, a + 2 * _COMPLEX, a + 3 * _COMPLEX)
    width = plain
    while 4 * width <= half:
        span = width * _COMPLEX
        for first in range(rows, stop, 4 * span):
            plain_four(first, first + span, first + 2 * span, first + 3 * span)
            for p in range(1, width):
                a = first + p * _COMPLEX
                four(a, a + span, a + 2 * span, a + 3 * span, angles + 24 * p)
        angles += 24 * width
        width *= 4


@jit
def _split(rows, bins, half, dct, split, turns, scales):  # type: ignore[no-untyped-def]
    """The real transform from the complex one."""
    ends(rows, rows, rows + _ROW, scales + 4)
    for k in range(1, half // 2 + 1):
        a, b, angle = rows + bins[k], rows + bins[half - k], split + 8 * k
        if dct:
            split_dct(a, b, angle, turns + 8 * k, turns + 8 * (half - k))
        else:
            split_fft(a, b, angle, scales)


@jit
def _join(rows, bins, half, dct, split, turns, scales):  # type: ignore[no-untyped-def]
    """The complex transform from the real one, real and imaginary parts exchanged."""
    ends(rows, rows + _ROW, rows, scales + 4)
    for k in range(1, half // 2 + 1):
        a, b, angle = rows + bins[k], rows + bins[half - k], split + 8 * k
        if dct:
            join_dct(a, b, angle, turns + 8 * k, turns + 8 * (half - k))
        else:
            join_fft(a, b, angle, scales)


@jit
def turn(x, out, room, plan, weight, accumulate):  # type: ignore[no-untyped-def]
    """`room` is (width, LANES). It is the caller's: an array of our own that only its address is
    used of would be given back as soon as that is taken."""
    size, half, width = plan.size, plan.size // 2, max(plan.size, LANES)
    edge = np.zeros((LANES if len(x) % (LANES * width) else 0, width), np.float32)
    rows, stride, factor = room.ctypes.data, 4 * width, weight.ctypes.data
    before, after = plan.before.ctypes.data, plan.after.ctypes.data
    levels, split, bins = plan.levels.ctypes.data, plan.split.ctypes.data, plan.bins
    turns, scales = plan.turns.ctypes.data, plan.scales.ctypes.data
    for at in range(0, len(x), LANES * size):
        count = min(LANES * size, len(x) - at)
        source, target = x.ctypes.data + 4 * at, out.ctypes.data + 4 * at
        whole = count == LANES * width
        if not whole:
            _copy(x[at : at + count], edge, size, True)
            source = target = edge.ctypes.data
        for i in range(0, width, LANES):
            load_rows(source + 4 * i, stride, rows, before + 8 * i)
        if plan.back and half:
            _join(rows, bins, half, plan.dct, split, turns, scales)
        _butterflies(rows, half, plan.plain, levels)
        if half and not plan.back:
            _split(rows, bins, half, plan.dct, split, turns, scales)
        if not whole and accumulate:
            _copy(out[at : at + count], edge, size, True)
        for i in range(0, width, LANES):
            if accumulate:
                add_rows(rows, after + 8 * i, target + 4 * i, stride, factor)
            else:
                store_rows(rows, after + 8 * i, target + 4 * i, stride, factor)
        if not whole:
            _copy(out[at : at + count], edge, size, False)


@jit
def _copy(values, edge, size, into):  # type: ignore[no-untyped-def]
    """Blocks of `size` values to the rows of `edge`, or from there."""
    for i in range(len(values)):
        if into:
            edge[i // size, i % size] = values[i]
        else:
            values[i] = edge[i // size, i % size]


def transform(x: Tensor, out: Tensor, *, domain: str, block: int) -> None:
    """Write the coefficients of the blocks of `x`, "fft" or "dct", to `out`, which may be `x`."""
    _run(x, out, domain, block, False, 1.0, False)


def transform_back(
    coefficients: Tensor,
    out: Tensor,
    *,
    domain: str,
    block: int,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Write, or add, `weight` times the values with these `coefficients` to `out`."""
    _run(coefficients, out, domain, block, True, weight, accumulate)


def _run(
    x: Tensor, out: Tensor, domain: str, block: int, back: bool, weight: float, accumulate: bool
) -> None:
    """In one thread: these are the few blocks that no strip has room for."""
    values, results, factor = array(x), array(out), np.array([weight], np.float32)
    for first, last, size in pieces(x.numel(), block):
        room = np.empty((max(size, LANES), LANES), np.float32)
        plan = plan_of(size, domain == "dct", back)
        turn(values[first:last], results[first:last], room, plan, factor, accumulate)
