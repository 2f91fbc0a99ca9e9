"""The coding of where values are, in Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.octets import lowest_bit
from gradwire.kernels.cpu.pack import pack_wide, unpack_wide
from gradwire.kernels.formats.layout import TILE

_SHORT = 1024
_GATHER = np.uint64(0x0102040810204080)
"""Times this, the lowest bits of the 8 bytes of a word come together in the highest byte."""


@jit
def gather_flags(octets, bitmap):  # type: ignore[no-untyped-def]
    """Eight flags, bytes of 0 or 1, to a byte of `bitmap`."""
    for k in range(len(bitmap)):
        bitmap[k] = np.uint8(octets[k] * _GATHER >> np.uint64(56))


@jit
def _gap_sizes(words, sums):  # type: ignore[no-untyped-def]
    """Through a histogram of the gaps: short ones, nearly all, cost one addition each."""
    counts, last = np.zeros(_SHORT, np.int64), np.int64(-1)
    for w in range(len(words)):
        word = words[w]
        while word:
            place = w * 64 + np.int64(lowest_bit(word))
            gap = place - last - 1
            last = place
            if gap < _SHORT:
                counts[gap] += 1
            else:
                for rice in range(16):
                    sums[rice] += (gap >> rice) + 1
            word &= word - np.uint64(1)
    for short in range(_SHORT):
        for rice in range(16):
            sums[rice] += counts[short] * ((short >> rice) + 1)


@jit
def _gap_encode(words, low, unary, rice):  # type: ignore[no-untyped-def]
    codes, octets = np.zeros(TILE, np.uint16), np.empty(TILE, np.uint8)
    unary[:] = np.uint64(0)
    last, bit, done = np.int64(-1), np.int64(-1), 0
    for w in range(len(words)):
        word = words[w]
        while word:
            place = w * 64 + np.int64(lowest_bit(word))
            gap = place - last - 1
            last = place
            bit += (gap >> rice) + 1
            unary[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)
            codes[done % TILE] = np.uint16(gap & ((1 << rice) - 1))
            done += 1
            if done % TILE == 0 and rice:
                pack_wide(codes, TILE, rice, low[(done - TILE) // 8 * rice :], octets)
            word &= word - np.uint64(1)
    rest = done % TILE
    if rest and rice:
        codes[rest:] = np.uint16(0)
        pack_wide(codes, -(-rest // 8) * 8, rice, low[(done - rest) // 8 * rice :], octets)


@jit
def _gap_decode(low, unary, words, rice, count, numel):  # type: ignore[no-untyped-def]
    codes, octets = np.zeros(TILE, np.uint16), np.empty(TILE, np.uint8)
    words[:] = np.uint64(0)
    place, last, done = np.int64(-1), np.int64(-1), 0
    for w in range(len(unary)):
        word = unary[w]
        while word:
            if done == count:
                return False
            if done % TILE == 0 and rice:
                size = min(TILE, -(-(count - done) // 8) * 8)
                unpack_wide(low[done // 8 * rice :], size, rice, codes, octets)
            bit = w * 64 + np.int64(lowest_bit(word))
            place += ((bit - last - 1) << rice) + np.int64(codes[done % TILE]) + 1
            if place >= numel:
                return False
            words[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
            last = bit
            done += 1
            word &= word - np.uint64(1)
    return done == count and (len(unary) == 0 or unary[-1] != 0)


def _words(bitmap: Tensor) -> Any:
    return bitmap.numpy().view(np.uint64)


def gap_sizes(bitmap: Tensor) -> list[int]:
    sums = np.zeros(16, np.int64)
    _gap_sizes(_words(bitmap), sums)
    return [int(size) for size in sums]


def gap_encode(bitmap: Tensor, low: Tensor, unary: Tensor, *, rice: int) -> None:
    _gap_encode(_words(bitmap), low.numpy(), _words(unary), rice)


def gap_decode(
    low: Tensor, unary: Tensor, bitmap: Tensor, *, rice: int, count: int, numel: int
) -> bool:
    return bool(_gap_decode(low.numpy(), _words(unary), _words(bitmap), rice, count, numel))
