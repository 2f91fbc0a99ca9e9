"""The scales of the blocks of a group, measured or given, and what becomes of them."""

from __future__ import annotations

import triton.language as tl

from gradwire.kernels.formats import layout
from gradwire.kernels.gpu.compiler import jit, static
from gradwire.kernels.gpu.tiles import EIGHTH, GROUP, ROWS, TILE, fixed_point, lanes, rows, skip

TINY, HUGE = tl.constexpr(layout.MIN_SCALE), tl.constexpr(layout.MAX_SCALE)
_INF = tl.constexpr(float("inf"))
_INF_BITS, NAN_BITS = tl.constexpr(0x7F800000), tl.constexpr(0x7FC00000)


@static
def levels_of(size: int) -> int:
    """The levels of a halving tree."""
    return size.bit_length() - 1


@jit
def _measure(x, L2: tl.constexpr):
    """What is added up, or compared."""
    if L2:
        measure = x.to(tl.float64) * x.to(tl.float64)
    else:
        measure = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return measure


@jit
def tree_of_tensors(parts, count: tl.constexpr, L2: tl.constexpr):
    """A halving tree over tensors; each thread has its place of all of them."""
    for level in tl.static_range(levels_of(count)):
        parts = _halved(parts, count >> (level + 1), L2)
    return parts[0]


@jit
def _halved(parts, half: tl.constexpr, L2: tl.constexpr):
    merged = ()
    for i in tl.static_range(half):
        if L2:
            merged += (parts[i] + parts[i + half],)
        else:
            merged += (tl.maximum(parts[i], parts[i + half]),)
    return merged


@jit
def tree(values, above: tl.constexpr, count: tl.constexpr, size: tl.constexpr, L2: tl.constexpr):
    """(above, count * size) to (above, count): a halving tree over neighbours, or their maximum."""
    if L2:
        for level in tl.static_range(levels_of(size)):
            halves = tl.reshape(values, (above, count, 2, size >> (level + 1)))
            values = tl.sum(halves, 2)  # bits: of two
        values = tl.reshape(values, (above, count))
    elif count == 1:
        values = tl.max(values, 1, keep_dims=True)
    else:
        values = tl.max(tl.reshape(values, (above, count, size)), 2)
    return values


@jit
def scale_of(total, L2: tl.constexpr):
    """From a sum of squares, or from the bits of a maximum."""
    if L2:
        finite = total < _INF
        norm = tl.sqrt(total).to(tl.float32)  # bits: float64 is rounded to nearest
    else:
        finite = total < _INF_BITS
        norm = total.to(tl.float32, bitcast=True)
    scale = tl.minimum(tl.maximum(norm, TINY), HUGE).to(tl.int32, bitcast=True)
    return tl.where(finite, scale, NAN_BITS).to(tl.float32, bitcast=True)


@jit
def totals_of(values, s: tl.constexpr, SPAN: tl.constexpr, L2: tl.constexpr):
    """The totals of the blocks that start in eighth `s`: (ROWS, blocks)."""
    count: tl.constexpr = max(SPAN // EIGHTH, 1)
    wide: tl.constexpr = min(SPAN, EIGHTH)
    parts = ()
    for i in tl.static_range(count):
        parts += (_measure(values[s + i], L2),)
    return tree(tree_of_tensors(parts, count, L2), ROWS, EIGHTH // wide, wide, L2)


@jit
def own_scales(values, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr):
    """The scales of the blocks of a group, one (ROWS, blocks) for each eighth."""
    count: tl.constexpr = max(SPAN // EIGHTH, 1)
    scales = ()
    for first in tl.static_range(0, 8, count):
        total = totals_of(values, first, SPAN, L2)
        if TILES > 1:
            total = tree(tl.reshape(total, (ROWS // TILES, TILES)), ROWS // TILES, 1, TILES, L2)
            total = tl.reshape(tl.broadcast_to(total, (ROWS // TILES, TILES)), (ROWS, 1))
        scale = scale_of(total, L2)
        for _ in tl.static_range(count):
            scales += (scale,)
    return scales


@jit
def store_scales(scales, values, left, SPAN: tl.constexpr, TILES: tl.constexpr):
    """Write what `own_scales` has made, to where the scales of the group are."""
    across: tl.constexpr = max(EIGHTH // SPAN, 1)
    for s in tl.static_range(0, 8, max(SPAN // EIGHTH, 1)):
        first = rows() * TILE + s * EIGHTH + tl.arange(0, across)[None, :] * SPAN
        inside = first % (SPAN * TILES) == 0
        if left is not None:
            inside &= first < left
        tl.store(scales + first // (SPAN * TILES), values[s], mask=inside)


@jit
def tile_scales(scales, tiles, row, left):
    """The scales of tiles of the group; so many tiles share one."""
    at = (tl.program_id(0) * ROWS + row) // tiles
    inside = row * TILE < (GROUP if left is None else left)
    return tl.load(scales + at, mask=inside, other=1.0)


@jit
def block_scales_at(scales, at, inside, SPAN: tl.constexpr):
    """The scales of the blocks, of less than a tile, that places of a group are in."""
    return tl.load(skip(scales, GROUP // SPAN) + at // SPAN, mask=inside, other=1.0)


@jit
def given_scales(scales, tiles, stride, left, s: tl.constexpr, SPAN: tl.constexpr):
    """The scales of eighth `s`: (ROWS, blocks), or (ROWS, 64) in a ragged group."""
    if SPAN == TILE:
        values = tile_scales(scales, tiles, rows(), left)
    elif left is None:
        across: tl.constexpr = max(EIGHTH // SPAN, 1)
        at = rows() * TILE + s * EIGHTH + tl.arange(0, across)[None, :] * SPAN
        values = block_scales_at(scales, at, at >= 0, SPAN)
    else:
        at = rows() * TILE + s * stride + lanes()
        values = block_scales_at(scales, at, lanes() < stride, SPAN)
    return values


@jit
def all_given_scales(scales, tiles, stride, left, SPAN: tl.constexpr):
    """`given_scales` of all eighths; where a block is a tile or more, they are loaded once."""
    first = given_scales(scales, tiles, stride, left, 0, SPAN)
    values = (first,)
    for s in tl.static_range(1, 8):
        if SPAN == TILE:
            values += (first,)
        else:
            values += (given_scales(scales, tiles, stride, left, s, SPAN),)
    return values


@jit
def spread(values):
    """What blocks have, for each of their values; (ROWS, 1) fits as it is."""
    count: tl.constexpr = values.shape[1]
    if count > 1 and count < EIGHTH:
        wide = tl.broadcast_to(values[:, :, None], (ROWS, count, EIGHTH // count))
        values = tl.reshape(wide, (ROWS, EIGHTH))
    return values


@jit
def scales_of(
    x, scales, tiles, stride, left, SPAN: tl.constexpr, TILES: tl.constexpr, L2: tl.constexpr
):
    """The scales of the values `x`: measured and written in whole groups if TILES, else given."""
    if TILES and left is None:
        values = own_scales(x, SPAN, TILES, L2)
        store_scales(skip(scales, GROUP // (SPAN * TILES)), values, left, SPAN, TILES)
    else:
        values = all_given_scales(scales, tiles, stride, left, SPAN)
    return values


@jit
def stochastic_codes(x, scales, top, dithers, shift):
    """Eighths of codes."""
    codes = ()
    for s in tl.static_range(8):
        codes += (stochastic_code(x[s], scales[s], top, dithers[s], shift),)
    return codes


@jit
def stochastic_code(x, scale, top, dither, shift):
    """Values to levels of a scale, rounded at random; `top` is levels << 16, exact in float32."""
    limit = top.to(tl.float32)
    factor = spread(tl.div_rn(limit + tl.zeros_like(scale), scale))
    code = (fixed_point(x * factor, limit) + top + ((dither + shift) & 0xFFFF)) >> 16
    return tl.where(spread(scale == scale), code, 0)
