"""Chunks of floats without loss, as they are written."""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.exponents import CODES, choose_prior, put_codes
from gradwire.kernels.cpu.octets import and8, lowest_bit, sub8
from gradwire.kernels.cpu.patterns import copy, count_set, joined, octet, wipe
from gradwire.kernels.cpu.words import leave_out, put_words, whole_bitmap_nbytes
from gradwire.kernels.formats.lossless import CHUNK, PLAIN, PRIORS, words_nbytes

_ROOM = CHUNK + 64
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
def write_chunks(x, mantissa, mask, heads, escapes, body):  # type: ignore[no-untyped-def]
    """Write chunks, with the numbers of their heads; the bytes of `body`."""
    rooms, values = np.empty((2 + CODES, _ROOM), np.uint8), np.empty(CHUNK, x.dtype)
    counts, saved, at = np.empty(544, np.int16), np.empty((len(PRIORS), 256), np.int16), 0
    for start in range(0, len(x), CHUNK):
        chunk = start // CHUNK
        at += _pack_chunk(
            x[start : start + CHUNK], mantissa, mask, rooms, values, counts, saved,
            heads[chunk], escapes[chunk], body[at:],
        )  # fmt: skip
    return at
