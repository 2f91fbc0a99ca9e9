"""How large some values of a vector are beside the root mean square of their block, in Numba."""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import as_bits
from gradwire.kernels.cpu.scales import moments_of, sums_for
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.formats.layout import MOST as LEVELS
from gradwire.kernels.formats.layout import TILE
from gradwire.kernels.formats.sample import BINS, LEAST, LOWEST, MOST, PARTS, TILES

_INF_BITS = np.int32(0x7F800000)
_FIRST = np.int32((127 + LOWEST) * PARTS)


@jit
def _count(values, start, size, rms, bins, counts):  # type: ignore[no-untyped-def]
    """Add those of one block, or of the part of it in a tile, to `counts`."""
    part = values[start : start + size]
    for i in range(size):
        bits = as_bits(abs(part[i]) / rms)
        place = min(max((bits >> np.int32(20)) - _FIRST, np.int32(0)), np.int32(BINS - 1))
        bins[i] = place if bits < _INF_BITS else np.int32(0)
    for i in range(size):
        counts[bins[i]] += 1


@jit
def _limit(peak, rms):  # type: ignore[no-untyped-def]
    """The least step that a block may have, in parts of an octave."""
    bits = as_bits(peak / (np.float32(LEVELS) * rms))
    return min(max((bits >> 20) - 127 * PARTS + 1, LEAST), MOST)


@jit
def count_segments(x, counts, limits, segment, block):  # type: ignore[no-untyped-def]
    """Those of all segments of `x`."""
    room, squares, sums = np.empty(TILE, np.float32), np.empty(TILE), sums_for(block)
    tile, bins = np.empty(TILE, np.float32), np.empty(TILE, np.int32)
    known, peak, rms = -1, np.float32(0), np.float32(0)
    for s in range(len(counts)):
        first, numel = s * segment, min(segment, len(x) - s * segment)
        every, width = -(-numel // (TILE * TILES)), min(numel, TILE)
        for k in range(-(-max(numel // TILE, 1) // every)):
            start = first + k * every * TILE
            values = load_tile(x, start, start + width, tile)
            for a in range(0, width, min(block, width)):
                b = (start + a) // block
                if b != known:
                    stop = min((b + 1) * block, len(x))
                    peak, rms = moments_of(x, b * block, stop, block, room, squares, sums)
                    known = b
                if a == 0:
                    limits[s, k] = _limit(peak, rms)
                _count(values, a, min(block, width - a), rms, bins, counts[s, k])
