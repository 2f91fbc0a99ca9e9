"""Floats without loss in Numba.

All but three loops are vector loops over a chunk, which stays in the nearest cache: a sample of the
exponents is counted, and ranks that escape a level are picked out, or put back, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.cpu.calls import array
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.exponents import CODES, choose_prior, put_codes, take_ranks
from gradwire.kernels.cpu.floats import mean_floats
from gradwire.kernels.cpu.octets import and8, lowest_bit, or8, sub8
from gradwire.kernels.cpu.patterns import copy, count_set, joined, octet, pattern_of, wipe
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.cpu.words import (
    leave_out,
    put_words,
    put_zeros,
    take_words,
    whole_bitmap_nbytes,
)
from gradwire.kernels.formats.lossless import (
    CHUNK,
    HEAD,
    KINDS,
    MARK,
    PLAIN,
    PRIORS,
    WIDTH,
    Kind,
    find_chunks,
    words_nbytes,
)
from gradwire.key import Key

_ROOM = CHUNK + 64
_SPAN = 4 * CHUNK
"""Values of which all rows of a mean fit the second cache."""
_FLOATS = (np.float32, np.int16, np.uint16)
"""What `load_tile` takes, by mark."""
_words_nbytes = jit(words_nbytes)


@jit
def _measure(x, mantissa, mask, exponents):  # type: ignore[no-untyped-def]
    """The exponents; all bits that are set anywhere, and how many values are +0."""
    any_bit, coded = x[0], np.int32(0)
    for i in range(len(x)):
        exponents[i] = and8(octet(x[i], mantissa), mask)
        any_bit = joined(any_bit, x[i], 0)
        coded = count_set(coded, x[i])
    return any_bit, len(x) - np.int64(coded)


@jit
def _low_zeros(any_bit, mantissa):  # type: ignore[no-untyped-def]
    """How many of the lowest bits of all mantissas are zero."""
    return np.int64(lowest_bit(np.uint64(any_bit) | np.uint64(1) << np.uint64(mantissa)))


@jit
def _pack_chunk(x, mantissa, mask, rooms, values, counts, saved, head, escapes, body):  # type: ignore[no-untyped-def]
    """Write one chunk; the bytes of its body, and centre, form, and number of `head`."""
    exponents, digits, codes = rooms[0], rooms[1], rooms[2:].reshape(-1)
    head[:], escapes[:] = 0, 0
    any_bit, zeros = _measure(x, mantissa, mask, exponents)
    number, start = len(x), 0
    if zeros == number:
        return 0
    if whole_bitmap_nbytes(number) < zeros * x.itemsize:
        start, number = whole_bitmap_nbytes(number), leave_out(x, digits, values, exponents, body)
        x = values[:number]
    prior, centre = choose_prior(exponents, number, counts, saved)
    for i in range(number):
        exponents[i] = sub8(np.uint8(centre), exponents[i])
    low = _low_zeros(any_bit, mantissa)
    width, stop = mantissa + 1 - low, start + x.itemsize * number
    size = put_codes(exponents, number, prior, digits, escapes, codes)
    if start + _words_nbytes(number, width) + size < stop:
        end = start + put_words(x, mantissa, low, width, digits, body[start:])
        stop = end + size
        copy(codes, size, body[end:])
        head[0], head[1] = centre, prior << 6 | width
    else:
        copy(x, number, body[start:stop].view(x.dtype))
        head[1], escapes[:] = PLAIN << 6, 0
    head[2] = number
    wipe(body, stop, -(-stop // 4) * 4)
    return -(-stop // 4) * 4


@jit
def _pack(x, mantissa, mask, heads, escapes, body):  # type: ignore[no-untyped-def]
    rooms, values = np.empty((2 + CODES, _ROOM), np.uint8), np.empty(CHUNK, x.dtype)
    counts, saved, at = np.empty(544, np.int16), np.empty((len(PRIORS), 256), np.int16), 0
    for start in range(0, len(x), CHUNK):
        chunk = start // CHUNK
        at += _pack_chunk(
            x[start : start + CHUNK], mantissa, mask, rooms, values, counts, saved,
            heads[chunk], escapes[chunk], body[at:],
        )  # fmt: skip
    return at


def pack_floats(x: Tensor, payload: Tensor) -> int:
    kind = KINDS[str(x.dtype).removeprefix("torch.")]
    patterns, out = array(x).view(f"u{kind.nbytes}"), payload.numpy()
    count = -(-len(patterns) // CHUNK)
    heads, escapes = np.empty((count, 3), np.int64), np.empty((count, 4), np.int64)
    first = MARK + HEAD.itemsize * count
    bodies: dict[int, Any] = {}

    def run(start: int, stop: int) -> None:
        chunk, mask = start // CHUNK, np.uint8((1 << kind.exponent) - 1)
        room = np.empty((stop - start) * kind.nbytes + 4, np.uint8) if start else out[first:]
        part = patterns[start:stop]
        nbytes = _pack(part, kind.mantissa, mask, heads[chunk:], escapes[chunk:], room)
        bodies[start] = room[:nbytes]

    over_threads(len(patterns), CHUNK, run)
    end = first
    for start in sorted(bodies):
        stop = end + len(bodies[start])
        if start:
            out[end:stop] = bodies[start]
        end = stop
    out[:MARK] = kind.mark, 0, 0, 0
    rows = out[MARK:first].view(HEAD)
    rows["centre"], rows["form"], rows["number"] = heads.T
    rows["escapes"] = escapes
    return end


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


class _Found:
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


def _find(payload: Tensor, numel: int) -> _Found | None:
    octets = payload.numpy()
    found = find_chunks(octets, numel)
    return None if found is None else _Found(octets, *found)


def unpack_floats(
    payload: Tensor, out: Tensor, *, weight: float = 1.0, accumulate: bool = False
) -> bool:
    found = _find(payload, out.numel())
    if found is None:
        return False
    values, kind = array(out), found.kind
    answers: list[bool] = []

    def run(start: int, stop: int) -> None:
        part = values[start:stop]
        if out.dtype == torch.float32:
            answers.append(found.add(start, stop, part, np.float32(weight), accumulate))
        else:
            answers.append(found.unpack(start, stop, part.view(f"u{kind.nbytes}")))

    over_threads(out.numel(), CHUNK, run)
    return all(answers)


@jit
def _one_nan(values):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        values[i] = values[i] if values[i] == values[i] else np.float32(np.nan)


def mean_packed_floats(payloads: Sequence[Tensor], out: Tensor) -> bool:
    found = [each for payload in payloads if (each := _find(payload, out.numel())) is not None]
    answers = [len(found) == len(payloads)]

    def run(start: int, stop: int) -> None:
        rows = torch.empty(len(found), min(_SPAN, stop - start))
        for at in range(start, stop, _SPAN):
            end = min(at + _SPAN, stop)
            for each, row in zip(found, rows.numpy(), strict=True):
                answers.append(each.add(at, end, row[: end - at], np.float32(1), False))
            mean_floats(rows[:, : end - at], out[at:end], key=Key())
            _one_nan(out[at:end].numpy())

    if all(answers):
        over_threads(out.numel(), CHUNK, run)
    return all(answers)
