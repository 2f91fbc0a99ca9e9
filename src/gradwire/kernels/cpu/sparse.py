"""The largest values and the coding of where they are, in Numba.

The threshold comes from two histograms, of the upper and of the lower half of the bit patterns:
linear time, no sort, and exact. Floats without their sign order like their bit patterns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import lowest_bit, magnitude_bits
from gradwire.kernels.cpu.pack import pack_wide, unpack_wide
from gradwire.kernels.formats.layout import TILE

_BODY = np.uint32(0x7FFFFFFF)
_SHORT = 1024
_GATHER = np.uint64(0x0102040810204080)
"""Times this, the lowest bits of the 8 bytes of a word come together in the highest byte."""


@jit
def _largest(patterns):  # type: ignore[no-untyped-def]
    top = np.int32(0)
    for i in range(len(patterns)):
        top = max(top, magnitude_bits(patterns[i]))
    return top


@jit
def _rank(counts, count):  # type: ignore[no-untyped-def]
    """The bin that holds the `count`-th from above, and which one it is within that bin."""
    at = len(counts) - 1
    while counts[at] < count:
        count -= counts[at]
        at -= 1
    return at, count


@jit
def _find_threshold(patterns, count):  # type: ignore[no-untyped-def]
    upper = np.zeros((2, 1 << 15), np.int64)  # two, as equal neighbours wait for each other
    even, odd = upper[0], upper[1]
    for i in range(0, len(patterns) - 1, 2):
        even[(patterns[i] & _BODY) >> np.uint32(16)] += 1
        odd[(patterns[i + 1] & _BODY) >> np.uint32(16)] += 1
    if len(patterns) % 2:
        even[(patterns[-1] & _BODY) >> np.uint32(16)] += 1
    high, count = _rank(even + odd, count)
    lower = np.zeros(1 << 16, np.int64)
    for i in range(len(patterns)):
        if (patterns[i] & _BODY) >> np.uint32(16) == np.uint32(high):
            lower[patterns[i] & np.uint32(0xFFFF)] += 1
    low, count = _rank(lower, count)
    threshold = np.uint32(high << 16 | low)
    stop = 0
    while count:
        count -= (patterns[stop] & _BODY) == threshold
        stop += 1
    return threshold, stop


@jit
def gather_flags(octets, bitmap):  # type: ignore[no-untyped-def]
    """Eight flags, bytes of 0 or 1, to a byte of `bitmap`."""
    for k in range(len(bitmap)):
        bitmap[k] = np.uint8(octets[k] * _GATHER >> np.uint64(56))


@jit
def _compact(patterns, words, kept, threshold, stop):  # type: ignore[no-untyped-def]
    flags, buffer = np.zeros(TILE, np.uint8), np.empty(TILE, np.uint32)
    octets, bitmap = flags.view(np.uint64), words.view(np.uint8)
    done = 0
    for at in range(0, len(patterns), TILE):
        count = min(TILE, len(patterns) - at)
        part = patterns[at : at + count]
        flags[count:] = np.uint8(0)
        for i in range(count):
            least = np.uint32(threshold) if at + i < stop else np.uint32(threshold + 1)
            flags[i] = np.uint8((part[i] & _BODY) >= least)
        found = 0
        for i in range(count):
            buffer[found] = part[i]
            found += flags[i]
        for i in range(found):  # a slice would do, and take seconds longer to compile
            kept[done + i] = buffer[i]
        done += found
        gather_flags(octets, bitmap[at // 8 : at // 8 + TILE // 8])


@jit
def _expand(words, kept, out):  # type: ignore[no-untyped-def]
    done = 0
    for w in range(len(words)):
        word = words[w]
        while word:
            out[w * 64 + np.int64(lowest_bit(word))] += kept[done]
            done += 1
            word &= word - np.uint64(1)


@jit
def _count_bits(words):  # type: ignore[no-untyped-def]
    count = 0
    for w in range(len(words)):
        word = words[w]
        while word:
            count += 1
            word &= word - np.uint64(1)
    return count


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


def _patterns(x: Tensor) -> Any:
    return x.numpy().view(np.uint32)


def _words(bitmap: Tensor) -> Any:
    return bitmap.numpy().view(np.uint64)


def largest(x: Tensor) -> int:
    return int(_largest(x.numpy().view(np.int32)))


def find_threshold(x: Tensor, count: int) -> tuple[int, int]:
    threshold, stop = _find_threshold(_patterns(x), count)
    return int(threshold), int(stop)


def compact(x: Tensor, bitmap: Tensor, kept: Tensor, *, threshold: int, stop: int) -> None:
    _compact(_patterns(x), _words(bitmap), _patterns(kept), np.uint32(threshold), stop)


def expand(bitmap: Tensor, kept: Tensor, out: Tensor) -> None:
    _expand(_words(bitmap), kept.numpy(), out.numpy())


def count_bits(bitmap: Tensor) -> int:
    return int(_count_bits(_words(bitmap)))


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
