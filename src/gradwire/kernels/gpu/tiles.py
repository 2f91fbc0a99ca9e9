"""What the kernels share: groups of tiles, cut into eighths.

A program works on a *group* of eight tiles. The values of a tile of T are eight *eighths* of T / 8
values, one after the other, and an eighth of all the tiles of a group is one tensor, (8, 64). The
layout (`formats/layout.py`) knows nothing but eighths: a byte of packed codes, and an output of
Philox, belong to values at the same place of several eighths. So all of it stays in one thread, and
none waits for another. All tensors have the same shape, so that every thread has four neighbours of
each; they are read and written 128 bits at a time where they are float32.

`stride`, the values of an eighth, is the constant 64 in whole groups. In the last one it differs
from tile to tile, and `left` says how many values there are; nothing is read or written beyond.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from gradwire.kernels.formats import layout
from gradwire.kernels.gpu.compiler import jit
from gradwire.kernels.gpu.philox import philox_words

TILE = tl.constexpr(layout.TILE)
EIGHTH = tl.constexpr(layout.TILE // 8)
ROWS = tl.constexpr(8)
GROUP = tl.constexpr(8 * layout.TILE)
_MAGIC, _MAGIC_BITS = tl.constexpr(8388608.0), tl.constexpr(0x4B000000)


def num_groups(numel: int) -> int:
    """Programs for `numel` values."""
    return -(-numel // (8 * layout.TILE))


def block_of(block: int | None) -> dict[str, Any]:
    """How kernels are told of blocks: the values of a tile, and the tiles, that share a scale."""
    if block is None:
        return {"tiles": (1 << 31) - 1, "SPAN": TILE.value}
    return {"tiles": max(block // TILE.value, 1), "SPAN": min(block, TILE.value)}


@jit
def rows():
    return tl.arange(0, ROWS)[:, None]


@jit
def lanes():
    return tl.arange(0, EIGHTH)[None, :]


@jit
def values_left(numel):
    """From the start of this group on, up to those of a group."""
    left = numel - tl.program_id(0).to(tl.int64) * GROUP
    return tl.minimum(left, GROUP).to(tl.int32)


@jit
def ragged(numel):
    """(stride, left) of any group, and the last."""
    left = values_left(numel)
    return stride_of(rows(), left), left


@jit
def stride_of(row, left):
    """The values of an eighth of a tile of the group."""
    return (tl.minimum(tl.maximum(left - row * TILE, 0), TILE) + 7) // 8


@jit
def is_whole(numel):
    return (tl.program_id(0).to(tl.int64) + 1) * GROUP <= numel


@jit
def by_groups(work: tl.constexpr, numel, args):
    """`work(stride, left, *args)` for the group of this program, whole or ragged."""
    if is_whole(numel):
        work(EIGHTH, None, *args)
    else:
        stride, left = ragged(numel)
        work(stride, left, *args)


@jit
def skip(pointer, per_group):
    """Where the part of this program begins, with so many elements a group."""
    return pointer + tl.program_id(0).to(tl.int64) * per_group


@jit
def load_eighth(x, stride, left, s: tl.constexpr):
    """Eighth `s` of the values at `x`, and zeros where there are none."""
    at = rows() * TILE + s * stride + lanes()
    if left is None:
        return tl.load(x + at)
    else:  # noqa: RET505, both branches are compiled without it
        return tl.load(x + at, mask=(lanes() < stride) & (at < left), other=0.0)


@jit
def load_eighths(x, stride, left):
    values = ()
    for s in tl.static_range(8):
        values += (load_eighth(x, stride, left, s).to(tl.float32),)
    return values


@jit
def store_eighth(out, values, stride, left, s: tl.constexpr):
    at = rows() * TILE + s * stride + lanes()
    if left is None:
        tl.store(out + at, values)
    else:
        tl.store(out + at, values, mask=(lanes() < stride) & (at < left))


@jit
def put_eighth(out, values, stride, left, s: tl.constexpr, ADD: tl.constexpr):
    """Write values to `out`, or add them."""
    if ADD:
        values = load_eighth(out, stride, left, s) + values
    store_eighth(out, values, stride, left, s)


@jit
def half_words(counter, stride, left, c1, c2, c3, k0, k1):
    """16 random bits for every value (int32), by eighths. Plane p is eighths 2 p and 2 p + 1."""
    first = counter.to(tl.uint32) + tl.program_id(0).to(tl.uint32) * (GROUP // 8)
    first += (rows() * EIGHTH).to(tl.uint32)
    if left is None:
        pairs = tl.arange(0, EIGHTH // 2)[None, :].to(tl.uint32)
        even = philox_words(first + pairs, c1, c2, c3, k0, k1)
        odd = philox_words(first + pairs + EIGHTH // 2, c1, c2, c3, k0, k1)
        dithers = _halves(even, odd)
    else:
        place = lanes() + tl.zeros_like(stride)
        even = philox_words(first + (place >> 1).to(tl.uint32), c1, c2, c3, k0, k1)
        after = place + stride
        odd = philox_words(first + (after >> 1).to(tl.uint32), c1, c2, c3, k0, k1)
        dithers = _chosen(even, odd, (place & 1) * 16, (after & 1) * 16)
    return dithers


@jit
def _halves(even, odd):
    dithers = ()
    for p in tl.static_range(4):
        a, b = even[p], odd[p]
        low, high = (a & 0xFFFF).to(tl.int32), (a >> 16).to(tl.int32)
        dithers += (tl.interleave(low, high),)
        low, high = (b & 0xFFFF).to(tl.int32), (b >> 16).to(tl.int32)
        dithers += (tl.interleave(low, high),)
    return dithers


@jit
def _chosen(even, odd, even_shift, odd_shift):
    """In a ragged tile neighbours need not share an output: every lane has its own."""
    dithers = ()
    for p in tl.static_range(4):
        dithers += (((even[p] >> even_shift.to(tl.uint32)) & 0xFFFF).to(tl.int32),)
        dithers += (((odd[p] >> odd_shift.to(tl.uint32)) & 0xFFFF).to(tl.int32),)
    return dithers


@jit
def half_word(counter, row, value, stride, c1, c2, c3, k0, k1):
    """The same 16 bits for values of any places in their tiles, each from an output of its own."""
    first = counter.to(tl.uint32) + tl.program_id(0).to(tl.uint32) * (GROUP // 8)
    eighth = quotient(value, stride)
    at = value - (eighth & ~1) * stride
    words = philox_words(first + (row * EIGHTH + (at >> 1)).to(tl.uint32), c1, c2, c3, k0, k1)
    word = words[0]
    for p in tl.static_range(1, 4):
        word = tl.where(eighth >= 2 * p, words[p], word)
    return ((word >> ((at & 1) * 16).to(tl.uint32)) & 0xFFFF).to(tl.int32)


@jit
def quotient(value, divisor):
    """value // divisor, both up to 1024: the tensor of all quotients takes a division a row."""
    inverse = ((1 << 20) + divisor - 1) // tl.maximum(divisor, 1)
    return (value * inverse) >> 20


@jit
def nearest(magnitude):
    """To the nearest integer (int32), ties to even, from 0 to below 2^23: adding 2^23 rounds."""
    return (magnitude + _MAGIC).to(tl.int32, bitcast=True) - _MAGIC_BITS


@jit
def fixed_point(scaled, top):
    """`scaled`, rounded, as an integer from -top to top; top is below 2^23."""
    whole = nearest(tl.minimum(tl.abs(scaled), top))
    return tl.where(scaled < 0, -whole, whole)


@jit
def sums_of(a, b):
    values = ()
    for s in tl.static_range(8):
        values += (a[s] + b[s],)
    return values
