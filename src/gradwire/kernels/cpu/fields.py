"""Codes in fields that the network may add, in Numba; one pass over memory, scales included."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import NORMS, array, key_words
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import (
    add32,
    and32,
    centred,
    high_half,
    mul32,
    put_field,
    shr32,
    signed_difference,
)
from gradwire.kernels.cpu.philox import add_shift, random_tile
from gradwire.kernels.cpu.scales import scale_of_tiles, scales_in_tile
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile, round_block
from gradwire.kernels.formats.fields import WORD, Dither, num_words, zero_of
from gradwire.kernels.formats.layout import MIN_SCALE, TILE
from gradwire.key import Key

_TINY = np.float32(MIN_SCALE)
_ROOM = TILE + WORD
"""Room for a tile whose fields are filled up to whole words."""


@jit
def _quantize_fields(x, scales, fields, top, width, block, norm, key, counter, shift):  # type: ignore[no-untyped-def]
    room, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    words = np.empty(TILE // 2, np.uint32)
    dither = words.view(np.uint16)
    codes = np.empty(_ROOM, np.uint8)
    span, per_word = min(block, TILE), WORD // width
    stride = -(-TILE // per_word)
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        if norm and block > TILE and at % block == 0:
            end = min(at + block, len(x))
            scales[at // block] = scale_of_tiles(x, at, end, norm == 2, room)
        tile = load_tile(x, at, stop, room)
        if norm and block <= TILE:
            scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)
        size = -(-(stop - at) // 8) * 8
        random_tile(words, size, np.uint32(counter + at // 8), key)
        if shift:
            add_shift(dither, shift)
        for a in range(0, size, span):
            b = min(a + span, size)
            round_block(tile[a:b], dither[a:b], codes[a:b], scales[(at + a) // block], top)
        codes[size:] = 0
        first = at // TILE * stride
        _pack(codes, width, fields[first : first + -(-size // per_word)])


@jit
def _pack(codes, width, fields):  # type: ignore[no-untyped-def]
    """The codes of a tile into its words."""
    stride = len(fields)
    for k in range(stride):
        fields[k] = np.uint32(codes[k])
    for m in range(1, WORD // width):
        part, place = codes[m * stride : (m + 1) * stride], np.uint32(m * width)
        for k in range(stride):
            fields[k] = put_field(fields[k], part[k], place)


@jit
def _unpack(fields, width, zero, levels):  # type: ignore[no-untyped-def]
    """The fields of a tile, less `zero`, as float32."""
    stride = len(fields)
    mask = np.uint32((1 << width) - 1)
    for m in range(WORD // width):
        part, place = levels[m * stride : (m + 1) * stride], np.uint32(m * width)
        for k in range(stride):
            part[k] = signed_difference(and32(shr32(fields[k], place), mask), zero)


@jit
def _add_dither(levels, dither, times, shift, centre):  # type: ignore[no-untyped-def]
    """Products are kept in the high half of a word, where they wrap at 2^16."""
    times, shift, centre = np.uint32(times), np.uint32(shift << 16), np.int32(centre)
    for i in range(len(dither)):
        drawn = add32(mul32(times, high_half(dither[i])), shift)
        levels[i] += centred(drawn, centre) * np.float32(2.0**-17)


@jit
def store_levels(levels, scales, out, at, count, block, ratio, accumulate, dither, words):  # type: ignore[no-untyped-def]
    """The levels of the tile at `at` to values; `words` is room for its random bits."""
    dithered, key, counter, times, shift, centre = dither
    if dithered:
        size = -(-count // 8) * 8
        random_tile(words, size, np.uint32(counter + at // 8), key)
        _add_dither(levels, words.view(np.uint16)[:size], times, shift, centre)
    span = min(block, TILE)
    for a in range(0, count, span):
        b = min(a + span, count)
        scale = scales[(at + a) // block]
        unit = np.float32(0) if dithered and scale <= _TINY else scale * ratio
        level, target = levels[a:b], out[at + a : at + b]
        if accumulate:
            for i in range(b - a):
                target[i] += level[i] * unit
        else:
            for i in range(b - a):
                target[i] = level[i] * unit


@jit
def _dequantize_fields(scales, fields, out, width, zero, block, ratio, accumulate, dither):  # type: ignore[no-untyped-def]
    levels = np.empty(_ROOM, np.float32)
    words = np.empty(TILE // 2, np.uint32)
    per_word = WORD // width
    stride = -(-TILE // per_word)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        size, first = -(-count // 8) * 8, at // TILE * stride
        _unpack(fields[first : first + -(-size // per_word)], width, zero, levels)
        store_levels(levels, scales, out, at, count, block, ratio, accumulate, dither, words)


def quantize_fields(
    x: Tensor,
    scales: Tensor,
    words: Tensor,
    *,
    levels: float,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
    shift: int = 0,
) -> None:
    values, scale, fields = array(x), array(scales), array(words).view(np.uint32)
    size, own = block or max(x.numel(), TILE), key_words(key)
    top = int(levels * (1 << 16))

    def run(start: int, stop: int) -> None:
        _quantize_fields(
            values[start:stop], scale[start // size :], fields[num_words(start, width) :], top,
            width, size, NORMS[norm], own, (offset + start) // 8, shift,
        )  # fmt: skip

    over_threads(x.numel(), size, run)


def dequantize_fields(
    scales: Tensor,
    words: Tensor,
    out: Tensor,
    *,
    levels: float,
    width: int,
    block: int | None,
    terms: int = 1,
    weight: float = 1.0,
    accumulate: bool = False,
    dither: Dither | None = None,
) -> None:
    scale, fields, values = array(scales), array(words).view(np.uint32), array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(weight / levels)
    zero, dither = zero_of(levels, terms, dither)

    def run(start: int, stop: int) -> None:
        _dequantize_fields(
            scale[start // size :], fields[num_words(start, width) :], values[start:stop], width,
            np.uint32(zero), size, ratio, accumulate, dither_words(dither, start),
        )  # fmt: skip

    over_threads(out.numel(), size, run)


def dither_words(dither: Dither | None, start: int) -> tuple[Any, ...]:
    """A dither as Numba takes it, from value `start` on; whether there is one comes first."""
    given = dither or Dither(Key(), 0, 0, 0, 0)
    counter, times = (given.offset + start) // 8, given.times & 0xFFFF
    return given is dither, key_words(given.key), counter, times, given.shift, given.centre
