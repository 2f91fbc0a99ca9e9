"""Payloads of values in steps, in Numba: chunk by chunk, while its values are in cache."""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu import chunk_reader, chunk_writer
from gradwire.kernels.cpu.calls import array, key_words
from gradwire.kernels.cpu.chunk_reader import read_chunk
from gradwire.kernels.cpu.chunk_tables import addresses
from gradwire.kernels.cpu.chunk_writer import write_chunk
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.dithered import restore_tile, round_tile
from gradwire.kernels.cpu.huffman import joined
from gradwire.kernels.cpu.sample import count_segments
from gradwire.kernels.cpu.scales import moments_of, step_of, sums_for
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.tiles import load_tile
from gradwire.kernels.formats.chunks import find_chunks
from gradwire.kernels.formats.huffman import CHUNK, HEAD
from gradwire.kernels.formats.layout import MOST, TILE, num_blocks
from gradwire.key import Key

_ZERO = np.uint8(MOST)


def count_ratios(
    x: Tensor, counts: Tensor, limits: Tensor, *, segment: int | None, block: int | None
) -> None:
    values, found, least = array(x), array(counts), array(limits)
    size, span = block or max(x.numel(), TILE), segment or max(x.numel(), 1)

    def run(start: int, stop: int) -> None:
        part, first, last = values[start:stop], start // span, -(-stop // span)
        count_segments(part, found[first:last], least[first:last], span, size)

    over_threads(x.numel(), span, run)


@jit
def _encode(x, ratios, segment, start, block, steps, key, counter, tables, desk, ids, heads, body):  # type: ignore[no-untyped-def]
    """Chunks of `x`, which begins with value `start` of a vector; bytes of their bodies."""
    chunk, words = np.empty(CHUNK, np.float32), np.empty(TILE // 2, np.uint32)
    room, squares, sums = np.empty(TILE, np.float32), np.empty(TILE), sums_for(block)
    begin, known = body, 0
    for first in range(0, len(x), CHUNK):
        stop = min(first + CHUNK, len(x))
        while known * block < stop:
            at = known * block
            peak, rms = moments_of(x, at, min(at + block, len(x)), block, room, squares, sums)
            steps[known] = step_of(peak, rms, ratios[(start + at) // segment])
            known += 1
        values, size = load_tile(x, first, stop, chunk).ctypes.data, -(-(stop - first) // 8) * 8
        for a in range(0, size, TILE):
            round_tile(
                values + 4 * a, min(TILE, size - a), steps, first + a, block, _ZERO, desk + a,
                words, key, counter,
            )  # fmt: skip
        ahead = x.ctypes.data + stop * x.itemsize
        body += write_chunk(size, _ZERO, tables, desk, ids, heads, body, ahead)
        ids, heads = ids + 1, heads + HEAD - 1
    return body - begin


@jit
def _decode(chunks, first, steps, block, out, ratio, accumulate, key, counter, tables, desk):  # type: ignore[no-untyped-def]
    """Chunk number `first` and those after it; False if one is damaged."""
    (ids, sizes, starts, stream), words = chunks, np.empty(TILE // 2, np.uint32)
    for at in range(0, len(out), CHUNK):
        count, k = min(CHUNK, len(out) - at), first + at // CHUNK
        body, nbytes, size = stream + starts[k], starts[k + 1] - starts[k], -(-count // 8) * 8
        target = out.ctypes.data + 4 * at
        if not read_chunk(ids[k], sizes[k], body, nbytes, size, _ZERO, tables, desk, target):
            return False
        for a in range(0, count, TILE):
            restore_tile(
                desk + a, min(TILE, count - a), steps, at + a, block, _ZERO, ratio, accumulate,
                out.ctypes.data, words, key, counter,
            )  # fmt: skip
    return True


def encode_dithered(
    x: Tensor,
    ratios: Tensor,
    out: Tensor,
    *,
    segment: int | None,
    block: int | None,
    key: Key,
    offset: int = 0,
) -> int:
    values, own, words = array(x), array(ratios), key_words(key)
    size, span = block or max(x.numel(), TILE), segment or max(x.numel(), 1)
    steps = np.empty(num_blocks(x.numel(), block), np.float32)
    ids, count = out.data_ptr() + steps.nbytes, -(-x.numel() // CHUNK)
    payload, bodies = out.numpy(), dict[int, Any]()
    stream = payload[steps.nbytes :]

    def run(start: int, stop: int) -> None:
        desk, first = np.empty(chunk_writer.DESK, np.uint8), start // CHUNK
        body = np.empty(stop - start + 8, np.uint8) if start else stream[HEAD * count :]
        nbytes = _encode(
            values[start:stop], own, span, start, size, steps[start // size :], words,
            (offset + start) // 8, addresses(), desk.ctypes.data, ids + first,
            ids + count + (HEAD - 1) * first, body.ctypes.data,
        )  # fmt: skip
        bodies[start] = body[:nbytes]

    over_threads(x.numel(), lcm(size, CHUNK), run)
    payload[: steps.nbytes] = steps.view(np.uint8)
    return steps.nbytes + joined(stream, HEAD * count, bodies)


def decode_dithered(
    payload: Tensor,
    out: Tensor,
    *,
    block: int | None,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
    accumulate: bool = False,
) -> bool:
    head, values, words = 4 * num_blocks(out.numel(), block), array(out), key_words(key)
    stream, size = payload.numpy()[head:], block or max(out.numel(), TILE)
    found = find_chunks(stream, -(-out.numel() // 8) * 8)
    if payload.numel() < head or found is None:
        return False
    steps, answers = payload.numpy()[:head].copy().view(np.float32), list[bool]()

    def run(start: int, stop: int) -> None:
        desk = np.empty(chunk_reader.DESK, np.uint8)
        whole = _decode(
            (*found, stream.ctypes.data), start // CHUNK, steps[start // size :], size,
            values[start:stop], np.float32(weight * 2.0**-17), accumulate, words,
            (offset + start) // 8, addresses(), desk.ctypes.data,
        )  # fmt: skip
        answers.append(whole)

    over_threads(out.numel(), lcm(size, CHUNK), run)
    return all(answers)
