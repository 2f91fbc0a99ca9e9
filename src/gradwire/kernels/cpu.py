"""The kernels in Numba, bit for bit those of `reference.py` and near memcpy in speed.

What makes them vectorize: every loop has unit stride over a tile that stays in L1; 32-bit
arithmetic goes through intrinsics, since Numba widens uint32 products to 64 bits; the maximum is
taken over the bit patterns, as integers. Calls release the GIL, and `set_num_threads` spreads
the blocks of a large vector over a small pool of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.codec import Key
from gradwire.kernels.cpu_elias import elias_decode, elias_encode, elias_sizes
from gradwire.kernels.cpu_intrinsics import jit, level
from gradwire.kernels.cpu_subspace import combine
from gradwire.kernels.cpu_tiles import (
    pack_tile,
    philox_words,
    random_tile,
    round_block,
    scale_of_tiles,
    scales_in_tile,
    unpack_tile,
    widen,
)
from gradwire.kernels.layout import TILE, packed_nbytes

__all__ = [
    "block_scales", "combine", "dequantize", "elias_decode", "elias_encode", "elias_sizes",
    "get_num_threads", "philox", "quantize", "set_num_threads",
]  # fmt: skip

_NORMS = {None: 0, "max": 1, "l2": 2}
_PIECE = 1 << 16
"""Vectors below two pieces of this many values are not worth a second thread."""


class _Threads:
    """The pool that large calls are spread over; none at the start."""

    count = 1
    pool: ThreadPoolExecutor | None = None


def set_num_threads(count: int) -> None:
    """Let each kernel call use up to `count` threads (1 at the start)."""
    if count < 1:
        raise ValueError(f"the number of codec threads must be at least 1, got {count}.")
    _Threads.count = count
    _Threads.pool = ThreadPoolExecutor(count, "gradwire-kernel") if count > 1 else None


def get_num_threads() -> int:
    """How many threads a kernel call may use."""
    return _Threads.count


@jit
def _block_scales(x, scales, block, norm):  # type: ignore[no-untyped-def]
    tile, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    if block > TILE:
        for b in range(len(scales)):
            stop = min((b + 1) * block, len(x))
            scales[b] = scale_of_tiles(x, b * block, stop, norm == 2, tile)
        return
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        widen(x, at, stop, tile)
        scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)


@jit
def _quantize(x, scales, packed, levels, width, block, norm, key, counter):  # type: ignore[no-untyped-def]
    tile, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    words = np.empty(TILE // 2, np.uint32)
    dither = words.view(np.uint16)
    codes = np.empty(TILE, np.uint8)
    span = min(block, TILE)
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        if norm and block > TILE and at % block == 0:
            end = min(at + block, len(x))
            scales[at // block] = scale_of_tiles(x, at, end, norm == 2, tile)
        widen(x, at, stop, tile)
        if norm and block <= TILE:
            scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)
        size = -(-(stop - at) // 8) * 8
        random_tile(words, size, np.uint32(counter + at // 8), key)
        for a in range(0, size, span):
            b = min(a + span, size)
            round_block(tile[a:b], dither[a:b], codes[a:b], scales[(at + a) // block], levels)
        pack_tile(codes, size, width, packed[at // 8 * width :])


@jit
def _dequantize(scales, packed, out, levels, width, block, ratio, accumulate):  # type: ignore[no-untyped-def]
    codes = np.empty(TILE, np.uint8)
    span = min(block, TILE)
    zero = np.int32(levels)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        unpack_tile(packed[at // 8 * width :], -(-count // 8) * 8, width, codes)
        for a in range(0, count, span):
            b = min(a + span, count)
            unit = scales[(at + a) // block] * ratio
            code, target = codes[a:b], out[at + a : at + b]
            if accumulate:
                for i in range(b - a):
                    target[i] += level(code[i], zero) * unit
            else:
                for i in range(b - a):
                    target[i] = level(code[i], zero) * unit


def _array(x: Tensor) -> Any:
    """The memory of `x` for Numba: bfloat16 as uint16, float16 as int16."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(np.uint16)
    return x.view(torch.int16).numpy() if x.dtype == torch.float16 else x.numpy()


def _key_words(key: Key) -> tuple[Any, ...]:
    return tuple(np.uint32(word) for word in key.words())


def philox(counter: Tensor, key: Key) -> Tensor:
    """See `reference.philox`; for tests, the other kernels make their random bits in place."""
    out = np.empty((4, counter.numel()), np.uint32)
    _philox_table(counter.to(torch.int64).numpy().reshape(-1), out, _key_words(key))
    return torch.from_numpy(out.astype(np.int64)).view(4, *counter.shape)


@jit
def _philox_table(counter, out, key):  # type: ignore[no-untyped-def]
    c1, c2, c3, k0, k1 = key
    for j in range(len(counter)):
        a, b, c, d = philox_words(np.uint32(counter[j]), c1, c2, c3, k0, k1)
        out[0, j], out[1, j], out[2, j], out[3, j] = a, b, c, d


def _spread(numel: int, block: int, run: Callable[[int, int], None]) -> None:
    """Call `run(first value, last)` once, or once per thread on spans of whole blocks and tiles."""
    grain = max(block, TILE)
    threads = min(_Threads.count, max(1, numel // max(grain, _PIECE)))
    if threads == 1 or _Threads.pool is None:
        run(0, numel)
        return
    grains = -(-numel // grain)
    cuts = [min(grains * i // threads * grain, numel) for i in range(threads + 1)]
    for task in [_Threads.pool.submit(run, a, b) for a, b in pairwise(cuts)]:
        task.result()


def block_scales(x: Tensor, scales: Tensor, *, block: int | None, norm: str) -> None:
    """See `reference.block_scales`."""
    values, out = _array(x), _array(scales)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        _block_scales(values[start:stop], out[start // size :], size, _NORMS[norm])

    _spread(x.numel(), size, run)


def quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
) -> None:
    """See `reference.quantize`. The norm of a block and its codes are one pass over memory."""
    values, scale, packed, words = _array(x), _array(scales), _array(codes), _key_words(key)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        part, part_scale = values[start:stop], scale[start // size :]
        part_packed, counter = packed[packed_nbytes(start, width) :], (offset + start) // 8
        _quantize(part, part_scale, part_packed, levels, width, size, _NORMS[norm], words, counter)

    _spread(x.numel(), size, run)


def dequantize(
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """See `reference.dequantize`."""
    scale, packed, values = _array(scales), _array(codes), _array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(weight / levels)

    def run(start: int, stop: int) -> None:
        part_scale, part_packed = scale[start // size :], packed[packed_nbytes(start, width) :]
        part = values[start:stop]
        _dequantize(part_scale, part_packed, part, levels, width, size, ratio, accumulate)

    _spread(out.numel(), size, run)
