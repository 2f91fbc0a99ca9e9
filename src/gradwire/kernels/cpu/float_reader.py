"""Chunks of floats without loss, as they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.exponents import take_ranks
from gradwire.kernels.cpu.octets import and8, or8, sub8
from gradwire.kernels.cpu.patterns import copy, joined, pattern_of, wipe
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.cpu.words import put_zeros, take_words, whole_bitmap_nbytes
from gradwire.kernels.formats.lossless import CHUNK, PLAIN, WIDTH, Kind, find_chunks, words_nbytes

_ROOM = CHUNK + 64
_FLOATS = (np.float32, np.int16, np.uint16)
"""What `load_tile` takes, by mark."""
_words_nbytes = jit(words_nbytes)


@jit
def _take_coded(body, form, centre, counts, mantissa, mask, rooms, out):  # type: ignore[no-untyped-def]
    """The values that are coded; False if they are damaged."""
    width, digits, over, zero = form & WIDTH, rooms[2], np.uint8(0), out.dtype.type(0)
    at = _words_nbytes(len(out), width)
    row = take_ranks(body[at:], form >> 6, counts, digits, rooms)
    if row < 0:
        return False
    ranks, number = rooms[row], len(out)
    for i in range(number):
        ranks[i] = sub8(np.uint8(centre), ranks[i])
        over = or8(over, ranks[i])
    if width == 24:  # all of a float32, and so in one loop
        halves, octets = body[: 2 * number].view(np.uint16), body[2 * number : 3 * number]
        for i in range(number):
            word = joined(joined(zero, halves[i], 0), octets[i], 16)
            out[i] = pattern_of(word, ranks[i], mantissa)
    else:
        take_words(body, mantissa + 1 - width, width, digits, out)
        for i in range(number):
            out[i] = pattern_of(out[i], ranks[i], mantissa)
    return and8(over, mask) == over


@jit
def _unpack_chunk(body, centre, form, counts, mantissa, mask, rooms, values, out):  # type: ignore[no-untyped-def]
    """False if it is damaged."""
    number, start = counts[0], 0
    if number == 0:
        wipe(out, 0, len(out))
        return True
    target = out
    if number < len(out):
        start, target = whole_bitmap_nbytes(len(out)), values[:number]
    if form >> 6 == PLAIN:
        copy(body[start : start + number * out.itemsize].view(out.dtype), number, target)
    elif not _take_coded(body[start:], form, centre, counts, mantissa, mask, rooms, target):
        return False
    return number == len(out) or put_zeros(body[:start], target, rooms[0], out)


@jit
def _unpack(octets, starts, centres, forms, counts, mantissa, mask, out):  # type: ignore[no-untyped-def]
    """Patterns of chunks; False if one is damaged."""
    rooms, values = np.empty((3, _ROOM), np.uint8), np.empty(CHUNK, out.dtype)
    for chunk in range(len(centres)):
        if not _unpack_chunk(
            octets[starts[chunk] : starts[chunk + 1]], centres[chunk], forms[chunk], counts[chunk],
            mantissa, mask, rooms, values, out[chunk * CHUNK : (chunk + 1) * CHUNK],
        ):  # fmt: skip
            return False
    return True


@jit
def _unpack_weighted(  # type: ignore[no-untyped-def]
    octets, starts, centres, forms, counts, mantissa, mask, patterns, floats, tile, out,
    weight, accumulate,
):  # fmt: skip
    """Values of chunks, which pass through `patterns`; these are also `floats`."""
    rooms, values = np.empty((3, _ROOM), np.uint8), np.empty(CHUNK, patterns.dtype)
    for chunk in range(len(centres)):
        target = out[chunk * CHUNK : (chunk + 1) * CHUNK]
        if not _unpack_chunk(
            octets[starts[chunk] : starts[chunk + 1]], centres[chunk], forms[chunk], counts[chunk],
            mantissa, mask, rooms, values, patterns[: len(target)],
        ):  # fmt: skip
            return False
        said = load_tile(floats, 0, len(target), tile)
        if accumulate:
            for i in range(len(target)):
                target[i] += said[i] * weight
        else:
            for i in range(len(target)):
                target[i] = said[i] * weight
    return True


class Found:
    """A payload whose heads are in order, as the inner loops want it."""

    def __init__(self, octets: Any, kind: Kind, heads: Any, starts: Any) -> None:
        self.kind = kind
        self._octets, self._starts = octets, starts
        self._centres, self._forms = (heads[name].astype(np.int64) for name in ("centre", "form"))
        self._counts = np.column_stack((heads["number"], heads["escapes"])).astype(np.int64)

    def unpack(self, start: int, stop: int, out: Any) -> bool:
        """Values `start` to `stop`, as patterns."""
        whole: bool = _unpack(*self._arguments(start, stop), out)
        return whole

    def add(self, start: int, stop: int, out: Any, weight: Any, accumulate: bool) -> bool:
        """The same as float32, times `weight`, written or added."""
        if self.kind.nbytes == 4 and weight == 1 and not accumulate:
            return self.unpack(start, stop, out.view(np.uint32))
        floats = np.empty(CHUNK, _FLOATS[self.kind.mark])
        patterns, tile = floats.view(f"u{self.kind.nbytes}"), np.empty(CHUNK, np.float32)
        whole: bool = _unpack_weighted(
            *self._arguments(start, stop), patterns, floats, tile, out, weight, accumulate
        )
        return whole

    def _arguments(self, start: int, stop: int) -> tuple[Any, ...]:
        first, last = start // CHUNK, -(-stop // CHUNK)
        mask = np.uint8((1 << self.kind.exponent) - 1)
        return (
            self._octets, self._starts[first:], self._centres[first:last],
            self._forms[first:last], self._counts[first:last], self.kind.mantissa, mask,
        )  # fmt: skip


def find(payload: Tensor, numel: int) -> Found | None:
    """Its chunks; None if it is damaged."""
    octets = payload.numpy()
    found = find_chunks(octets, numel)
    return None if found is None else Found(octets, *found)
