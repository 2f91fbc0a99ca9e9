"""Prefix codes in Numba.

Loops over the codes of a tile are vector loops (`digits`). Only those over groups are not: they
look words up, 4 codes or 2 at a time, and read two streams side by side, so that neither waits for
the other (`streams`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.digits import (
    LANES,
    add_low_bits,
    add_signs,
    choose,
    index_groups,
    split_codes,
    unpack_groups,
)
from gradwire.kernels.cpu.intrinsics import magnitude
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.cpu.streams import (
    ROOM,
    close,
    ends,
    put_excess,
    put_groups,
    take,
    take_both,
    take_excess,
)
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.formats.huffman import CHUNK, NOTHING, PLAIN, find_chunks, tables
from gradwire.kernels.formats.layout import TILE


@jit
def _encode_chunk(codes, zero, low, base, group, words, room, index, body):  # type: ignore[no-untyped-def]
    """Write the chunk to `body`: low bits, then two streams; the sizes of the streams."""
    fields, digits, low_bits = room[:TILE], room[TILE : 2 * TILE], room[2 * TILE : 3 * TILE]
    streams, width = room[3 * TILE :], low + 1 if low else 0
    state_a = state_b = (np.int64(0), np.uint64(0), np.uint64(0))
    for at in range(0, len(codes), TILE):
        size, top = min(TILE, len(codes) - at), np.uint8(base - 1)
        split_codes(codes[at : at + size], size, zero, low, base, fields, digits, low_bits)
        if low:
            pack_tile(low_bits, size, width, body[at // 8 * width :])
        index_groups(fields, size, group, index)
        even = at // TILE % 2 == 0
        address = streams.ctypes.data + (0 if even else ROOM)
        state = state_a if even else state_b
        state = put_groups(index[: size // group], words, address, *state)
        state = put_excess(digits, size, top, address, *state)
        state_a, state_b = (state, state_b) if even else (state_a, state)
    start = len(codes) // 8 * width
    nbytes_a = close(streams, 0, state_a)
    nbytes_b = close(streams, ROOM, state_b)
    if start + nbytes_a + nbytes_b >= len(codes):
        return -1, -1
    _copy(streams, nbytes_a, body[start:])
    _copy(streams[ROOM:], nbytes_b, body[start + nbytes_a :])
    return nbytes_a, nbytes_b


@jit
def _copy(source, size, target):  # type: ignore[no-untyped-def]
    for i in range(size):
        target[i] = source[i]


@jit
def _encode(codes, zero, ids, sizes, body, lows, rows, costs, bases, groups, words):  # type: ignore[no-untyped-def]
    room, index = np.empty(3 * TILE + 2 * ROOM, np.uint8), np.empty(TILE // 2, np.uint16)
    magnitudes, lanes, at = np.empty(CHUNK, np.uint8), np.empty(LANES, np.uint8), 0
    totals = np.empty(costs.shape[1], np.int32)
    for start in range(0, len(codes), CHUNK):
        size, chunk = min(CHUNK, len(codes) - start), start // CHUNK
        part = codes[start : start + size]
        for i in range(size):
            magnitudes[i] = magnitude(part[i], zero)
        for i in range(size, CHUNK):
            magnitudes[i] = 0
        a = b = 0
        table = choose(magnitudes, size, costs, totals, lanes)
        if table != NOTHING:
            row, low = rows[table], lows[table]
            a, b = _encode_chunk(
                part, zero, low, bases[row], groups[row], words[row], room, index, body[at:]
            )
            if a < 0:
                a, b, table = 0, 0, PLAIN
                _copy(part, size, body[at:])
                at += size
            else:
                at += size // 8 * (low + 1 if low else 0) + a + b
        ids[chunk], sizes[2 * chunk], sizes[2 * chunk + 1] = table, a, b
    return at


@jit
def _decode_chunk(body, split, zero, low, base, group, groups, room, codes):  # type: ignore[no-untyped-def]
    """One chunk whose second stream starts at `split` of its streams; False if it is damaged."""
    half, digits, low_bits = TILE // 2, room[:TILE], room[TILE : 2 * TILE]
    both, streams = room[2 * TILE : 4 * TILE], room[4 * TILE :]
    width = low + 1 if low else 0
    start, top = len(codes) // 8 * width, np.uint8(base - 1)
    sizes = split, len(body) - start - split
    _copy(body[start:], sizes[0], streams)
    _copy(body[start + split :], sizes[1], streams[ROOM:])
    _wipe(streams[sizes[0] :], 24, np.uint8(0))
    _wipe(streams[ROOM + sizes[1] :], 24, np.uint8(0))
    address = streams.ctypes.data
    state_a = state_b = (np.int64(0), np.uint64(0), np.uint64(0))
    for at in range(0, len(codes), 2 * TILE):
        size = min(2 * TILE, len(codes) - at)
        number_a = min(TILE, size) // group
        number_b = size // group - number_a
        together = number_b // 3 * 3
        state_a, state_b = take_both(both, groups, together, sizes, state_a, state_b, address)
        state_a = take(both, 0, groups, together, number_a, sizes[0] + 8, address, *state_a)
        state_b = take(
            both, TILE, groups, together, number_b, sizes[1] + 8, address + ROOM, *state_b
        )
        for side in range(1 if number_b == 0 else 2):
            count = number_b * group if side else number_a * group
            first, place = at + side * TILE, side * TILE
            unpack_groups(both[place : place + half], count, group, digits)
            state = state_b if side else state_a
            whole, state = take_excess(
                digits, count, top, sizes[side] + 8, address + side * ROOM, *state
            )
            state_a, state_b = (state_a, state) if side else (state, state_b)
            part = codes[first : first + count]
            if low:
                unpack_tile(body[first // 8 * width :], count, width, low_bits)
                whole &= add_low_bits(digits, count, low, low_bits, zero, part)
            else:
                add_signs(digits, count, group, both[place + half :], zero, part)
            if not whole:
                return False
    return ends(state_a, sizes[0]) and ends(state_b, sizes[1])


@jit
def _wipe(target, size, value):  # type: ignore[no-untyped-def]
    for i in range(size):
        target[i] = value


@jit
def _decode(ids, sizes, body, zero, codes, lows, rows, bases, per_group, groups):  # type: ignore[no-untyped-def]
    room, at = np.empty(4 * TILE + 2 * ROOM, np.uint8), np.int64(0)
    for start in range(0, len(codes), CHUNK):
        size, chunk = min(CHUNK, len(codes) - start), start // CHUNK
        table = ids[chunk]
        if table == NOTHING:
            _wipe(codes[start:], size, zero)
        elif table == PLAIN:
            _copy(body[at:], size, codes[start:])
            at += size
        else:
            row, low = rows[table], lows[table]
            a, b = np.int64(sizes[2 * chunk]), np.int64(sizes[2 * chunk + 1])
            stop = at + size // 8 * (low + 1 if low else 0) + a + b
            if not _decode_chunk(
                body[at:stop], a, zero, low, bases[row], per_group[row], groups[row], room,
                codes[start : start + size],
            ):  # fmt: skip
                return False
            at = stop
    return True


def huffman_encode(codes: Tensor, *, zero: int) -> Tensor:
    octets, t = codes.numpy(), tables()
    count = -(-len(octets) // CHUNK)
    stream, sizes = np.empty(5 * count + len(octets), np.uint8), np.empty(2 * count, np.uint16)
    bodies: list[tuple[int, int]] = []

    def run(start: int, stop: int) -> None:
        first, at = start // CHUNK, 5 * count + start
        nbytes = _encode(
            octets[start:stop], np.uint8(zero), stream[first:], sizes[2 * first :], stream[at:],
            t.lows, t.rows, t.costs, t.bases, t.sizes, t.words,
        )  # fmt: skip
        bodies.append((at, nbytes))

    over_threads(len(octets), CHUNK, run)
    end = 5 * count
    for at, nbytes in sorted(bodies):
        if at != end:
            stream[end : end + nbytes] = stream[at : at + nbytes].copy()
        end += nbytes
    stream[count : 5 * count] = sizes.view(np.uint8)
    return torch.from_numpy(stream[:end])


def huffman_decode(stream: Tensor, codes: Tensor, *, zero: int) -> bool:
    octets, out, t = stream.numpy(), codes.numpy(), tables()
    found = find_chunks(octets, len(out))
    if found is None:
        return False
    ids, sizes, starts = found
    answers: list[bool] = []

    def run(start: int, stop: int) -> None:
        first, last = start // CHUNK, -(-stop // CHUNK)
        whole = _decode(
            ids[first:], sizes[2 * first :], octets[starts[first] : starts[last]], np.uint8(zero),
            out[start:stop], t.lows, t.rows, t.bases, t.sizes, t.groups,
        )  # fmt: skip
        answers.append(whole)

    over_threads(len(out), CHUNK, run)
    return all(answers)
