"""The scales of blocks in Numba. The maximum is taken over bit patterns, as integers."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import NORMS, array
from gradwire.kernels.cpu.compiler import inline, jit
from gradwire.kernels.cpu.intrinsics import as_float, magnitude_bits
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.formats.layout import MAX_SCALE, MIN_SCALE, MOST, TILE

_INF_BITS = np.int32(0x7F800000)
_NAN = np.float32(np.nan)
_TINY, _HUGE = np.float32(MIN_SCALE), np.float32(MAX_SCALE)
_LEVELS = np.float32(MOST)


@jit
def max_bits(tile):  # type: ignore[no-untyped-def]
    """The largest magnitude, as bits: inf and NaN come out on top."""
    bits = tile.view(np.int32)
    top = np.int32(0)
    for i in range(len(bits)):
        top = max(top, magnitude_bits(bits[i]))
    return top


@jit
def tree_sum(values, size):  # type: ignore[no-untyped-def]
    """Sum of values[:size], size a power of two, by halves; they are overwritten."""
    while size > 1:
        size //= 2
        for i in range(size):
            values[i] += values[size + i]
    return values[0]


@jit
def sum_of_squares(part, squares):  # type: ignore[no-untyped-def]
    """As many values as a power of two; `squares` is room to work in."""
    if len(part) < TILE:
        for i in range(len(part)):
            squares[i] = _square(part[i])
        return tree_sum(squares, len(part))
    for i in range(TILE // 8):  # the first three halves of `tree_sum` at once
        a, b = _square(part[i]) + _square(part[i + 256]), _square(part[i + 128])
        c, d = _square(part[i + 64]) + _square(part[i + 320]), _square(part[i + 192])
        b, d = b + _square(part[i + 384]), d + _square(part[i + 448])
        squares[i] = (a + b) + (c + d)
    for i in range(32):  # and so on: known sizes stay in registers
        squares[i] += squares[32 + i]
    for i in range(16):
        squares[i] += squares[16 + i]
    for i in range(8):
        squares[i] += squares[8 + i]
    return tree_sum(squares, 8)


@inline
def _square(value):  # type: ignore[no-untyped-def]
    return np.float64(value) * np.float64(value)


@jit
def _scale(top, l2, square):  # type: ignore[no-untyped-def]
    """The scale of a block from the bits of its maximum, or from its sum of squares."""
    if top >= _INF_BITS:
        return _NAN
    scale = np.float32(np.sqrt(square)) if l2 else as_float(np.int32(top))
    return min(max(scale, _TINY), _HUGE)


@jit
def scales_in_tile(tile, count, block, l2, scales, squares):  # type: ignore[no-untyped-def]
    """The scales of the blocks of one tile; `squares` is room to work in."""
    for b in range(-(-count // block)):
        part = tile[b * block : (b + 1) * block]
        square = sum_of_squares(part, squares) if l2 else 0.0
        scales[b] = _scale(max_bits(part), l2, square)


@jit
def scale_of_tiles(x, start, stop, l2, room):  # type: ignore[no-untyped-def]
    """The scale of one block of several tiles."""
    top, square = _survey(x, start, stop, l2, room, np.empty(TILE), sums_for(stop - start))
    return _scale(top, l2, square)


@jit
def sums_for(block):  # type: ignore[no-untyped-def]
    """Room for the sums of the tiles of a block, as many as a power of two."""
    size = 1
    while size < -(-block // TILE):
        size *= 2
    return np.empty(size, np.float64)


@jit
def _survey(x, start, stop, l2, room, squares, sums):  # type: ignore[no-untyped-def]
    """The bits of the largest magnitude of several tiles, and their sum of squares if `l2`."""
    top = np.int32(0)
    sums[:] = 0.0
    for t in range(-(-(stop - start) // TILE)):
        at = start + t * TILE
        tile = load_tile(x, at, min(at + TILE, stop), room)
        top = max(top, max_bits(tile))
        if l2:
            sums[t] = sum_of_squares(tile, squares)
    return top, tree_sum(sums, len(sums)) if l2 else 0.0


@jit
def moments_of(x, start, stop, block, room, squares, sums):  # type: ignore[no-untyped-def]
    """Largest magnitude and root mean square of x[start:stop], a block; NaN if it is not finite."""
    if block > TILE:
        top, square = _survey(x, start, stop, True, room, squares, sums)
    else:
        part = load_tile(x, start, stop, room[:block])
        top, square = max_bits(part), sum_of_squares(part, squares)
    rms = _scale(top, True, square) / np.sqrt(np.float32(stop - start))
    return _scale(top, False, 0.0), rms


@jit
def step_of(peak, rms, ratio):  # type: ignore[no-untyped-def]
    """The step of a block with these moments."""
    if np.isnan(peak):
        return _NAN
    if peak <= _TINY:
        return np.float32(0)
    return min(max(rms * ratio, peak / _LEVELS), _HUGE)


@jit
def _block_scales(x, scales, block, norm):  # type: ignore[no-untyped-def]
    room, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    if block > TILE:
        for b in range(-(-len(x) // block)):
            stop = min((b + 1) * block, len(x))
            scales[b] = scale_of_tiles(x, b * block, stop, norm == 2, room)
        return
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        tile = load_tile(x, at, stop, room)
        scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)


def block_scales(x: Tensor, scales: Tensor, *, block: int | None, norm: str) -> None:
    values, out = array(x), array(scales)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        _block_scales(values[start:stop], out[start // size :], size, NORMS[norm])

    over_threads(x.numel(), size, run)


@jit
def _block_steps(x, ratios, steps, segment, block, first):  # type: ignore[no-untyped-def]
    room, squares, sums = np.empty(TILE, np.float32), np.empty(TILE), sums_for(block)
    for b in range(-(-len(x) // block)):
        start, stop = b * block, min((b + 1) * block, len(x))
        peak, rms = moments_of(x, start, stop, block, room, squares, sums)
        steps[b] = step_of(peak, rms, ratios[(first + start) // segment])


def block_steps(
    x: Tensor, ratios: Tensor, steps: Tensor, *, segment: int | None, block: int | None
) -> None:
    values, own, out = array(x), array(ratios), array(steps)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        part = out[start // size :]
        _block_steps(values[start:stop], own, part, segment or max(x.numel(), 1), size, start)

    over_threads(x.numel(), size, run)
