"""Values that are rotated and stay floats, in Numba."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.rotation import (
    INF_BITS,
    padded_size,
    room_for,
    rotate,
    rotate_back,
    signs_at,
    tame,
)
from gradwire.kernels.cpu.scales import max_bits
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.formats.rotation import MARGIN, SHORTER
from gradwire.key import Key

_NAN = np.float32(np.nan)


@jit
def _rotate_blocks(x, out, block, room, key, place):  # type: ignore[no-untyped-def]
    for at in range(0, len(x), block):
        stop = min(at + block, len(x))
        size = padded_size(stop - at)
        signs = signs_at(place + at, at == 0, room.words, key)
        values = load_tile(x, at, stop, room.padded[:size])
        top, target = max_bits(values), out[at : at + size]
        if top >= INF_BITS:
            target[:] = _NAN
            continue
        room.state[:] = 0
        room.state[0] = np.float32(4 / size * SHORTER)
        rotate(tame(values, top, room.padded), signs, size, room)
        target[:] = room.rows[:size]


@jit
def _rotate_blocks_back(y, out, block, accumulate, room, key, place):  # type: ignore[no-untyped-def]
    for at in range(0, len(out), block):
        target = out[at : at + block]
        source = y[at : at + padded_size(len(target))]
        signs = signs_at(place + at, at == 0, room.words, key)
        if max_bits(source) >= INF_BITS:
            target[:] = _NAN
            continue
        rows = room.rows[: len(source)]
        for i in range(len(source)):
            rows[i] = source[i] * np.float32(MARGIN / SHORTER)
        rotate_back(target, signs, accumulate, room)


def rotate_blocks(x: Tensor, out: Tensor, *, block: int, key: Key, offset: int = 0) -> None:
    values, turned, words = array(x), array(out), key_words(key)

    def run(start: int, stop: int) -> None:
        room = room_for(block, 0)
        _rotate_blocks(values[start:stop], turned[start:], block, room, words, offset + start)

    over_threads(x.numel(), block, run)


def rotate_blocks_back(
    y: Tensor, out: Tensor, *, block: int, key: Key, offset: int = 0, accumulate: bool = False
) -> None:
    turned, values, words = array(y), array(out), key_words(key)

    def run(start: int, stop: int) -> None:
        room, part = room_for(block, 0), values[start:stop]
        _rotate_blocks_back(turned[start:], part, block, accumulate, room, words, offset + start)

    over_threads(out.numel(), block, run)
