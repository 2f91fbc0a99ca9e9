"""Elias's recursive code in Numba."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.compiler import jit


@jit
def _omega(k):  # type: ignore[no-untyped-def]
    """Elias's recursive code of k >= 1, and its length: 48 bits at most for k below 2^36."""
    code, length = np.uint64(0), 1
    while k > 1:
        size = 1
        while k >> size:
            size += 1
        code |= np.uint64(k) << np.uint64(length)
        length += size
        k = size - 1
    return code, length


@jit
def _omega_table(top):  # type: ignore[no-untyped-def]
    codes, lengths = np.zeros(top + 1, np.uint64), np.zeros(top + 1, np.int64)
    for k in range(1, top + 1):
        codes[k], lengths[k] = _omega(k)
    return codes, lengths


@jit
def _elias_sizes(codes, levels):  # type: ignore[no-untyped-def]
    _, lengths = _omega_table(max(levels + 1, 1024))
    nonzeros = sparse = dense = 0
    last = -1
    for i in range(len(codes)):
        magnitude = abs(np.int64(codes[i]) - levels)
        dense += lengths[magnitude + 1]
        if magnitude:
            gap = i - last
            last = i
            nonzeros += 1
            sparse += lengths[magnitude] + (lengths[gap] if gap <= 1024 else _omega(gap)[1])
    return nonzeros, sparse + nonzeros, dense + nonzeros


@jit
def _elias_encode(codes, out, levels, sparse):  # type: ignore[no-untyped-def]
    table, lengths = _omega_table(max(levels + 1, 1024))
    pending, count, at, last = np.uint64(0), 0, 0, -1
    for i in range(len(codes)):
        level = np.int64(codes[i]) - levels
        if sparse and level == 0:
            continue
        sign, magnitude = np.uint64(level < 0), abs(level)
        for part in range(2):
            if part == 0 and sparse:
                gap = i - last
                last = i
                code, length = (table[gap], lengths[gap]) if gap <= 1024 else _omega(gap)
            elif part == 0:
                code, length = table[magnitude + 1], lengths[magnitude + 1]
            elif sparse:
                code, length = table[magnitude], lengths[magnitude]
                code, length = code | sign << np.uint64(length), length + 1
            elif magnitude:
                code, length = sign, 1
            else:
                continue
            pending = pending << np.uint64(length) | code
            count += length
            while count >= 8:
                count -= 8
                out[at] = np.uint8((pending >> np.uint64(count)) & np.uint64(255))
                at += 1
    if count:
        out[at] = np.uint8((pending << np.uint64(8 - count)) & np.uint64(255))


@jit
def _peek(stream, position):  # type: ignore[no-untyped-def]
    """At least 57 bits from bit `position` on, highest first; zeros beyond the end."""
    first = position >> 3
    window = np.uint64(0)
    for i in range(8):
        octet = np.uint64(stream[first + i]) if first + i < len(stream) else np.uint64(0)
        window = window << np.uint64(8) | octet
    return window << np.uint64(position & 7)


@jit
def _read_omega(window):  # type: ignore[no-untyped-def]
    """The number at the head of `window` and its bits; (0, 0) if it is longer than any of ours."""
    value, used = np.int64(1), np.int64(0)
    while window >> np.uint64(63):
        size = value + 1
        if used + size > 48:
            return 0, 0
        value = np.int64(window >> np.uint64(64 - size))
        window <<= np.uint64(size)
        used += size
    return value, used + 1


@jit
def _elias_decode(stream, codes, levels, sparse, nonzeros):  # type: ignore[no-untyped-def]
    codes[:] = levels
    position, index = np.int64(0), np.int64(-1)
    for i in range(nonzeros if sparse else len(codes)):
        number, used = _read_omega(_peek(stream, position))
        position += used
        if used == 0 or position > 8 * len(stream):
            return False
        if sparse:
            index += number
            window = _peek(stream, position)
            negative = window >> np.uint64(63)
            magnitude, used = _read_omega(window << np.uint64(1))
            if used == 0:
                return False
            position += used + 1
        else:
            index, magnitude, negative = np.int64(i), number - 1, np.uint64(0)
            if magnitude:
                negative = _peek(stream, position) >> np.uint64(63)
                position += 1
        if magnitude > levels or index >= len(codes):
            return False
        codes[index] = np.uint8(levels - magnitude if negative else levels + magnitude)
    rest = 8 * len(stream) - position
    return 0 <= rest < 8 and _peek(stream, position) == 0


def elias_sizes(codes: Tensor, *, levels: int) -> tuple[int, int, int]:
    nonzeros, sparse, dense = _elias_sizes(codes.numpy(), levels)
    return int(nonzeros), int(sparse), int(dense)


def elias_encode(codes: Tensor, out: Tensor, *, levels: int, sparse: bool) -> None:
    _elias_encode(codes.numpy(), out.numpy(), levels, sparse)


def elias_decode(
    stream: Tensor, codes: Tensor, *, levels: int, sparse: bool, nonzeros: int
) -> bool:
    return bool(_elias_decode(stream.numpy(), codes.numpy(), levels, sparse, nonzeros))
