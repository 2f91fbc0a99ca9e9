"""Prefix codes in Numba, of codes that are given."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu import chunk_reader, chunk_writer
from gradwire.kernels.cpu.chunk_reader import read_chunk
from gradwire.kernels.cpu.chunk_tables import addresses
from gradwire.kernels.cpu.chunk_writer import write_chunk
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.octets import copy
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.formats.chunks import find_chunks
from gradwire.kernels.formats.huffman import CHUNK, HEAD


@jit
def _encode(codes, first, numel, zero, tables, desk, ids, heads, body):  # type: ignore[no-untyped-def]
    """Write chunk number `first` and those after it, of `numel` codes; bytes of their bodies."""
    begin = body
    for at in range(0, numel, CHUNK):
        size, chunk = min(CHUNK, numel - at), first + at // CHUNK
        copy(codes + at, desk, size)
        place = heads + (HEAD - 1) * chunk
        body += write_chunk(size, zero, tables, desk, ids + chunk, place, body, codes + at + size)
    return body - begin


@jit
def _decode(ids, sizes, starts, stream, first, numel, zero, tables, desk, codes):  # type: ignore[no-untyped-def]
    """Read chunk number `first` and those after it, of `numel` codes; False: one is damaged."""
    for at in range(0, numel, CHUNK):
        size, k = min(CHUNK, numel - at), first + at // CHUNK
        body, nbytes = stream + starts[k], starts[k + 1] - starts[k]
        target = codes + at
        if not read_chunk(ids[k], sizes[k], body, nbytes, size, zero, tables, desk, target):
            return False
        copy(desk, target, size)
    return True


def joined(stream: Any, begin: int, bodies: dict[int, Any]) -> int:
    """Put the bodies of spans, by where these start, after the first one; where all end."""
    for start in sorted(bodies):
        end = begin + len(bodies[start])
        if start:
            stream[begin:end] = bodies[start]
        begin = end
    return begin


def huffman_encode(codes: Tensor, out: Tensor, *, zero: int) -> int:
    numel, stream, bodies = codes.numel(), out.numpy(), dict[int, Any]()
    count, source, target = -(-numel // CHUNK), codes.data_ptr(), out.data_ptr()

    def run(start: int, stop: int) -> None:
        desk = np.empty(chunk_writer.DESK, np.uint8)
        body = np.empty(stop - start, np.uint8) if start else stream[HEAD * count :]
        nbytes = _encode(
            source + start, start // CHUNK, stop - start, np.uint8(zero), addresses(),
            desk.ctypes.data, target, target + count, body.ctypes.data,
        )  # fmt: skip
        bodies[start] = body[:nbytes]

    over_threads(numel, CHUNK, run)
    return joined(stream, HEAD * count, bodies)


def huffman_decode(stream: Tensor, codes: Tensor, *, zero: int) -> bool:
    found, answers = find_chunks(stream.numpy(), codes.numel()), list[bool]()
    if found is None:
        return False

    def run(start: int, stop: int) -> None:
        desk = np.empty(chunk_reader.DESK, np.uint8)
        whole = _decode(
            *found, stream.data_ptr(), start // CHUNK, stop - start, np.uint8(zero), addresses(),
            desk.ctypes.data, codes.data_ptr() + start,
        )  # fmt: skip
        answers.append(whole)

    over_threads(codes.numel(), CHUNK, run)
    return all(answers)
