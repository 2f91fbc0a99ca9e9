"""Rotations of blocks in Triton, see `formats/rotation.py`.

A program has a group of 4,096 values as one tensor, (blocks, values of a block). Pairs are split,
added and subtracted, and joined again; the compiler finds out which of them meet in a thread, in a
warp, or in shared memory. In the last group `left` says how many values there are. There the last
block may be smaller than the others: it is turned at no distance that it does not have.
"""

from __future__ import annotations

import triton.language as tl

from gradwire.kernels.formats import rotation
from gradwire.kernels.gpu.blocks import levels_of, tree
from gradwire.kernels.gpu.compiler import jit
from gradwire.kernels.gpu.philox import philox_words
from gradwire.kernels.gpu.tiles import EIGHTH, GROUP, ROWS, TILE, rows

_LANES, _SLOTS = tl.constexpr(rotation.LANES), tl.constexpr(rotation.SLOTS)
_COUNTERS = tl.constexpr(rotation.COUNTERS)
_ONE_BITS = tl.constexpr(127 << 23)


@jit
def num_values(left, BLOCK: tl.constexpr):
    """How many values there are from the start of each block on: (blocks, 1)."""
    return left - tl.arange(0, GROUP // BLOCK)[:, None] * BLOCK


@jit
def padded_size(numel, BLOCK: tl.constexpr):
    """As in `formats/rotation.py`, of blocks with at least `numel` values."""
    size = tl.zeros_like(numel) + TILE
    for level in tl.static_range(levels_of(BLOCK // TILE)):
        size = tl.where(numel > TILE << level, 2 * TILE << level, size)
    return size


@jit
def padded_rows(left, BLOCK: tl.constexpr):
    """The values of an eighth of every tile: 64, or 0 behind the last block."""
    start = (left - 1) // BLOCK * BLOCK
    return tl.where(rows() * TILE < start + padded_size(left - start, BLOCK), EIGHTH, 0)


@jit
def sizes_of(left, BLOCK: tl.constexpr):
    """The values of each block (float32), the padding included."""
    if left is None:
        size = tl.full((1, 1), BLOCK, tl.int32)
    else:
        size = padded_size(num_values(left, BLOCK), BLOCK)
    return size.to(tl.float32)


@jit
def _places(BLOCK: tl.constexpr):
    return tl.arange(0, GROUP // BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]


@jit
def load_blocks(x, left, BLOCK: tl.constexpr):
    at = _places(BLOCK)
    values = tl.load(x + at) if left is None else tl.load(x + at, mask=at < left, other=0.0)
    return values.to(tl.float32)


@jit
def store_blocks(out, values, left, BLOCK: tl.constexpr):
    at = _places(BLOCK)
    if left is None:
        tl.store(out + at, values)
    else:
        tl.store(out + at, values, mask=at < left)


@jit
def columns(values):
    """(a, b, count) to `count` tensors (a, b)."""
    a: tl.constexpr = values.shape[0]
    b: tl.constexpr = values.shape[1]
    count: tl.constexpr = values.shape[2]
    parts = (values,)
    for level in tl.static_range(levels_of(count)):
        parts = _halves(parts, a, b, count >> level)
    return _reshaped(parts, a, b, count)


@jit
def _halves(parts, a: tl.constexpr, b: tl.constexpr, size: tl.constexpr):
    """The even columns of all parts, then the odd ones."""
    even, odd = (), ()
    for i in tl.static_range(len(parts)):
        first, second = tl.split(tl.reshape(parts[i], (a, b, size // 2, 2)))
        even += (first,)
        odd += (second,)
    return even + odd


@jit
def _reshaped(parts, a: tl.constexpr, b: tl.constexpr, count: tl.constexpr):
    shaped = ()
    for i in tl.static_range(count):
        shaped += (tl.reshape(parts[i], (a, b)),)
    return shaped


@jit
def eighths(values):
    """(blocks, values) of a group, cut as `tiles.py` has it."""
    by_tiles = tl.reshape(values, (ROWS, 8, EIGHTH))
    return columns(tl.permute(by_tiles, (0, 2, 1)))


@jit
def from_eighths(parts, BLOCK: tl.constexpr):
    """The other way: (blocks, values)."""
    pairs = ()
    for s in tl.static_range(4):
        pairs += (tl.join(parts[s], parts[s + 4]),)
    even, odd = tl.join(pairs[0], pairs[2]), tl.join(pairs[1], pairs[3])
    together = tl.permute(tl.join(even, odd), (0, 2, 3, 4, 1))
    return tl.reshape(together, (GROUP // BLOCK, BLOCK))


@jit
def inverse(power):
    """1 / 2^k for float32."""
    return (power.to(tl.int32, bitcast=True) * -1 + 2 * _ONE_BITS).to(tl.float32, bitcast=True)


@jit
def sum_of(values):
    """(blocks, 1): 128 sums side by side, each in rising order, and then by halves."""
    blocks: tl.constexpr = values.shape[0]
    count: tl.constexpr = values.shape[1] // _SLOTS
    parts = columns(tl.permute(tl.reshape(values, (blocks, count, _SLOTS)), (0, 2, 1)))
    total = parts[0]
    for i in tl.static_range(1, count):
        total += parts[i]
    return tree(total, blocks, 1, _SLOTS, True)


@jit
def _words(tile, c1, c2, c3, k0, k1, STAGE: tl.constexpr):
    """The words that a stage of the rotation has: (ROWS, 16); `tile` is the first in its stream."""
    at = tile + tl.program_id(0) * ROWS + rows()
    output = at % 2 * 2 * _LANES + STAGE * _LANES + tl.arange(0, _LANES)[None, :]
    counter = (at // 8 * _COUNTERS + output).to(tl.uint32)
    w0, w1, w2, w3 = philox_words(counter, c1, c2, c3, k0, k1)
    plane = at % 8 // 2
    return tl.where(plane < 2, tl.where(plane == 0, w0, w1), tl.where(plane == 2, w2, w3))


@jit
def _flip(values, words):
    """Change signs: bit k of word j of a tile is that of value 16 k + j."""
    k = tl.arange(0, TILE // _LANES)[None, :, None].to(tl.uint32)
    signs = tl.reshape((words[:, None, :] >> k) << 31, values.shape)
    return (values.to(tl.uint32, bitcast=True) ^ signs).to(tl.float32, bitcast=True)


@jit
def _turn(values, left, first: tl.constexpr):
    """Sums and differences of pairs, at distances from `first` to half the block."""
    for level in tl.static_range(levels_of(values.shape[1] // first)):
        values = _sums_and_differences(values, left, first << level)
    return values


@jit
def _sums_and_differences(values, left, distance: tl.constexpr):
    blocks: tl.constexpr = values.shape[0]
    size: tl.constexpr = values.shape[1]
    pairs = tl.reshape(values, (blocks, size // (2 * distance), 2, distance))
    a, b = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
    sums, differences = a + b, a - b
    if left is not None and distance >= TILE:
        is_there = num_values(left, size)[:, :, None] > distance
        sums, differences = tl.where(is_there, sums, a), tl.where(is_there, differences, b)
    pairs = tl.permute(tl.join(sums, differences), (0, 1, 3, 2))
    return tl.reshape(pairs, (blocks, size))


@jit
def rotate(values, left, tile, c1, c2, c3, k0, k1):
    values = _flip(values, _words(tile, c1, c2, c3, k0, k1, 0))
    values = _flip(_turn(values, left, _LANES), _words(tile, c1, c2, c3, k0, k1, 1))
    return _turn(values, left, 1)


@jit
def rotate_back(values, left, tile, c1, c2, c3, k0, k1):
    values = _flip(_turn(values, left, 1), _words(tile, c1, c2, c3, k0, k1, 1))
    return _flip(_turn(values, left, _LANES), _words(tile, c1, c2, c3, k0, k1, 0))
