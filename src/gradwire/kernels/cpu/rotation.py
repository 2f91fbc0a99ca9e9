"""Rotations of blocks, see `formats/rotation.py`, in Numba: a block stays in L1 from end to end."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gradwire.kernels.cpu.butterflies import (
    ROW,
    finish_add,
    finish_write,
    flip_eight,
    load_eight,
    mix_eight,
    turn_eight,
    turn_four,
    turn_two,
    unmix_eight,
)
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import as_float
from gradwire.kernels.cpu.philox import random_tile
from gradwire.kernels.formats.layout import TILE
from gradwire.kernels.formats.rotation import CEILING, COUNTERS, LANES, MARGIN, SLOTS, STRETCH

_WORDS = 2 * LANES
_SIGNS, _STAGE = 4 * _WORDS, 4 * LANES
"""The signs of a tile, and those of its first stage, in bytes."""
_ROWS = TILE // LANES
_CEILING = np.float32(CEILING)
INF_BITS = np.int32(0x7F800000)


class Room(NamedTuple):
    """Memory to work in. It is the caller's: an array of a kernel's own that only its address is
    used of would be given back as soon as that is taken.

    `state` has a factor in its first row, and then the sums of a block.
    """

    rows: Any
    padded: Any
    words: Any
    state: Any
    units: Any


def room_for(block: int, levels: int) -> Room:
    """For blocks of this size, and so many positive levels."""
    sizes = block, block, LANES + SLOTS, levels
    rows, padded, state, units = (_aligned(size, np.float32) for size in sizes)
    return Room(rows, padded, _aligned(STRETCH // TILE * _WORDS, np.uint32), state, units)


def _aligned(size: int, dtype: Any) -> Any:
    """Numbers of 4 bytes, the first of which begins a line of the cache, so that rows do."""
    room = np.empty(size + LANES, dtype)
    first = -room.ctypes.data % ROW // 4
    return room[first : first + size]


@jit
def padded_size(numel):  # type: ignore[no-untyped-def]
    """As in `formats/rotation.py`."""
    size = TILE
    while size < numel:
        size *= 2
    return size


@jit
def signs_at(place, first, words, key):  # type: ignore[no-untyped-def]
    """Where the signs of the block at `place` are, drawn if it begins a stretch or is the first."""
    if first or place % STRETCH == 0:
        random_tile(words, TILE, np.uint32(place // STRETCH * COUNTERS), key)
    return words.ctypes.data + place % STRETCH // TILE * _SIGNS


@jit
def _turn(rows, count):  # type: ignore[no-untyped-def]
    """Sums and differences of `count` rows, a power of two, from a distance of eight rows on."""
    done = 8
    while done < count:
        stride = done * ROW
        if 8 * done <= count:
            for first in range(rows, rows + count * ROW, 8 * stride):
                for a in range(first, first + stride, ROW):
                    turn_eight(a, stride)
            done *= 8
        elif 4 * done <= count:
            for first in range(rows, rows + count * ROW, 4 * stride):
                for a in range(first, first + stride, ROW):
                    turn_four(a, stride)
            done *= 4
        else:
            for a in range(rows, rows + stride, ROW):
                turn_two(a, stride)
            done *= 2


@jit
def tame(values, top, room):  # type: ignore[no-untyped-def]
    """Where the values are that can be rotated: clipped, or zeros if some are not finite."""
    if top >= INF_BITS:
        room[:] = 0
    elif as_float(top) > _CEILING:
        for i in range(len(values)):
            room[i] = min(max(values[i], -_CEILING), _CEILING)
    else:
        return values.ctypes.data
    return room.ctypes.data


@jit
def rotate(source, signs, size, room):  # type: ignore[no-untyped-def]
    """The values at `source`, times the factor, rotated; their squares are in the sums."""
    rows, state, count = room.rows.ctypes.data, room.state.ctypes.data, size // LANES
    for r in range(0, count, 8):
        own = signs + r // _ROWS * _SIGNS
        load_eight(source + r * ROW, rows + r * ROW, own, r % _ROWS, state)
    _turn(rows, count)
    for r in range(0, count, 8):
        mix_eight(rows + r * ROW, signs + r // _ROWS * _SIGNS + _STAGE, r % _ROWS)
    _turn(rows, count)


@jit
def rotate_back(target, signs, accumulate, room):  # type: ignore[no-untyped-def]
    """The rows, rotated back, and written or added to `target`."""
    size = padded_size(len(target))
    rows, state, count = room.rows.ctypes.data, room.state.ctypes.data, size // LANES
    for r in range(0, count, 8):
        unmix_eight(rows + r * ROW)
    _turn(rows, count)
    for r in range(0, count, 8):
        flip_eight(rows + r * ROW, signs + r // _ROWS * _SIGNS + _STAGE, r % _ROWS)
    _turn(rows, count)
    room.state[0] = np.float32(4 / size / MARGIN)
    whole = len(target) == size
    out = target.ctypes.data if whole else rows
    for r in range(0, count, 8):
        own, place = signs + r // _ROWS * _SIGNS, r % _ROWS
        if whole and accumulate:
            finish_add(rows + r * ROW, out + r * ROW, own, place, state)
        else:
            finish_write(rows + r * ROW, out + r * ROW, own, place, state)
    if not whole:
        for i in range(len(target)):
            target[i] = target[i] + room.rows[i] if accumulate else room.rows[i]
