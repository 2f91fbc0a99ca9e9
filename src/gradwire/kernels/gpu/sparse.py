"""The coding of where values are, in Triton.

Which bit comes after which is a prefix sum: bits are counted span by span, listed in their order,
and what was a sum over all gaps before is one of torch's, over integers. Bits that are set by many
threads are bytes first, and packed by another launch: no two write to the same.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats import layout
from gradwire.kernels.gpu.bitmaps import SPAN, bits_up_to, load_bits, store_bitmap
from gradwire.kernels.gpu.compiler import jit, kernel, launch
from gradwire.kernels.gpu.kept import load_codes
from gradwire.kernels.gpu.pack import pack_tiles

_GAPS, _RICES = tl.constexpr(1024), tl.constexpr(16)
_EIGHTH = tl.constexpr(layout.TILE // 8)


@kernel
def _list_places(bitmap, ends, places, numel, stop):
    first = tl.program_id(0).to(tl.int64) * SPAN
    bits = load_bits(bitmap, first, stop, 1, SPAN)
    counts = tl.cumsum(bits, 1)  # bits: integers
    at = tl.load(ends + tl.program_id(0)) - tl.max(counts) + counts - 1
    place = first + tl.arange(0, SPAN)[None, :]
    tl.store(places + at, place, mask=(bits > 0) & (at < numel))


def _places(bitmap: Tensor, ends: Tensor, room: int) -> Tensor:
    """Where the first `room` bits are; the rest is not defined."""
    places = ends.new_empty(room)
    launch(_list_places, ends.numel(), bitmap, ends, places, room, bitmap.numel())
    return places


@jit
def _own_gaps():
    return tl.program_id(0).to(tl.int64) * _GAPS + tl.arange(0, _GAPS)


@jit
def _load_gaps(places, at, inside):
    """How far places are behind those before them."""
    before = tl.load(places + at - 1, mask=inside & (at > 0), other=-1)
    return tl.load(places + at, mask=inside, other=0) - before - 1


@kernel
def _sum_gaps(places, sums, numel):
    at = _own_gaps()
    gaps = _load_gaps(places, at, at < numel)
    for rice in tl.static_range(_RICES):
        bits = tl.where(at < numel, (gaps >> rice) + 1, 0)
        tl.store(sums + tl.program_id(0) * _RICES + rice, tl.sum(bits, 0))  # bits: integers


def sums_of_gaps(places: Tensor) -> Tensor:
    """The bits of the unary part for each `rice`."""
    programs = -(-places.numel() // _GAPS.value)
    sums = places.new_empty(programs, _RICES.value)
    launch(_sum_gaps, programs, places, sums, places.numel())
    return sums.sum(0)  # bits: integers


def gap_sizes(bitmap: Tensor) -> list[int]:
    ends = bits_up_to(bitmap)
    count = int(ends[-1]) if ends.numel() else 0
    return [int(size) for size in sums_of_gaps(_places(bitmap, ends, count)).tolist()]


@kernel
def _cut_gaps(places, ends, lengths, low, numel, base):
    """The bits of every gap's unary part, none behind the last, and its low bits."""
    at, number = _own_gaps(), tl.load(ends)
    gaps = _load_gaps(places, at, at < tl.minimum(number, numel))
    tl.store(lengths + at, tl.where(at < number, (gaps >> base) + 1, 0), mask=at < numel)
    tl.store(low + at, (gaps & ((1 << base) - 1)).to(tl.int16), mask=at < numel)


@kernel
def _set_flags(after, flags, ends, numel, size):
    """Flag the place before each of the first `ends` numbers, if it is one of `size`."""
    at = _own_gaps()
    inside = at < tl.minimum(tl.load(ends), numel)
    place = tl.load(after + at, mask=inside, other=0) - 1
    one = (place * 0 + 1).to(tl.uint8)
    tl.store(flags + place, one, mask=inside & (place >= 0) & (place < size))


@kernel
def _pack_flags(flags, bitmap, stop):
    first = tl.program_id(0).to(tl.int64) * SPAN
    at = first + tl.arange(0, SPAN)[None, :]
    store_bitmap(bitmap, tl.load(flags + at, mask=at < 8 * stop, other=0) > 0, first, stop)


def _write_bits(after: Tensor, number: Tensor, size: int, bitmap: Tensor) -> None:
    """A bitmap with the bits before `number` places, those of the first `size` values."""
    flags = bitmap.new_zeros(8 * bitmap.numel())
    programs = -(-after.numel() // _GAPS.value)
    launch(_set_flags, programs, after, flags, number, after.numel(), size)
    launch(_pack_flags, -(-flags.numel() // SPAN.value), flags, bitmap, bitmap.numel())


def gap_encode(bitmap: Tensor, low: Tensor, unary: Tensor, *, rice: int) -> None:
    if not unary.numel():
        return
    ends, room = bits_up_to(bitmap), 8 * unary.numel()  # a gap has a bit at least
    places, number = _places(bitmap, ends, room), ends[-1:]
    lengths, apart = torch.empty_like(places), places.new_empty(room, dtype=torch.int16)
    programs = -(-room // _GAPS.value)
    launch(_cut_gaps, programs, places, number, lengths, apart, room, rice)
    _write_bits(lengths.cumsum(0), number, room, unary)  # bits: integers
    if rice:
        pack_tiles(apart, low, number, each=_EIGHTH.value, width=rice)


@kernel
def _read_gaps(places, low, steps, numel, number, WIDTH: tl.constexpr):
    """How far each value is behind the one before; `number` low parts can be read."""
    at = _own_gaps()
    steps_of = _load_gaps(places, at, at < numel)
    if WIDTH:
        is_whole = (tl.program_id(0).to(tl.int64) + 1) * _GAPS <= number
        place, inside = (at & (_EIGHTH - 1)).to(tl.int32), at < number
        code = load_codes(low, at // _EIGHTH, place, inside, _EIGHTH, number, is_whole, WIDTH)
        steps_of = (steps_of << WIDTH) + code
    tl.store(steps + at, steps_of + 1, mask=at < numel)


def gap_decode(
    low: Tensor, unary: Tensor, bitmap: Tensor, *, rice: int, count: int, numel: int
) -> bool:
    ends = bits_up_to(unary)
    places = _places(unary, ends, count)
    steps, number = torch.empty_like(places), ends.new_full((1,), count)
    readable = min(count, 8 * low.numel() // rice) if rice else 0
    programs = -(-count // _GAPS.value)
    launch(_read_gaps, programs, places, low, steps, count, readable, WIDTH=rice)
    after = steps.cumsum(0)  # bits: integers
    _write_bits(after, number, min(numel, 8 * bitmap.numel()), bitmap)
    if not unary.numel():
        return count == 0
    fits = (ends[-1:] == count) & unary[-8:].any()
    return bool((fits & (after[-1:] <= numel) if count else fits).item())
