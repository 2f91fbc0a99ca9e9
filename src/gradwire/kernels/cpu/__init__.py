"""The kernels in Numba, bit for bit those of `reference.py` and near memcpy in speed.

What makes them vectorize: every loop has unit stride over a tile that stays in L1; 32-bit
arithmetic goes through intrinsics, since Numba widens uint32 products to 64 bits; the maximum is
taken over the bit patterns, as integers. Calls release the GIL, and `set_num_threads` spreads
the blocks of a large vector over a small pool of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.cpu.calls import (
    NORMS,
    array,
    get_num_threads,
    key_words,
    set_num_threads,
    spread,
)
from gradwire.kernels.cpu.dithered import dequantize_dithered, quantize_dithered
from gradwire.kernels.cpu.elias import elias_decode, elias_encode, elias_sizes
from gradwire.kernels.cpu.exponential import exp_dequantize, exp_quantize, exp_reduce
from gradwire.kernels.cpu.fields import dequantize_fields, quantize_fields
from gradwire.kernels.cpu.floats import mean_floats
from gradwire.kernels.cpu.intrinsics import jit, level
from gradwire.kernels.cpu.nested import add_nested, quantize_nested
from gradwire.kernels.cpu.rangefloat import range_float_decode, range_float_encode
from gradwire.kernels.cpu.sparse import (
    compact,
    count_bits,
    expand,
    gap_decode,
    gap_encode,
    gap_sizes,
    largest,
    select,
)
from gradwire.kernels.cpu.subspace import combine, project
from gradwire.kernels.cpu.sums import add_packed, dequantize_sum
from gradwire.kernels.cpu.tiles import (
    load_tile,
    pack_tile,
    philox_words,
    random_tile,
    rotate,
    round_block,
    scale_of_tiles,
    scales_in_tile,
    store_codes,
    unpack_tile,
)
from gradwire.kernels.cpu.transforms import transform, transform_back
from gradwire.kernels.formats.layout import TILE, packed_nbytes
from gradwire.key import Key

__all__ = [
    "add_nested",
    "add_packed",
    "block_scales",
    "combine",
    "compact",
    "count_bits",
    "dequantize",
    "dequantize_dithered",
    "dequantize_fields",
    "dequantize_mean",
    "dequantize_sum",
    "elias_decode",
    "elias_encode",
    "elias_sizes",
    "exp_dequantize",
    "exp_quantize",
    "exp_reduce",
    "expand",
    "gap_decode",
    "gap_encode",
    "gap_sizes",
    "get_num_threads",
    "largest",
    "mean_floats",
    "philox",
    "project",
    "quantize",
    "quantize_dithered",
    "quantize_fields",
    "quantize_nested",
    "range_float_decode",
    "range_float_encode",
    "select",
    "set_num_threads",
    "transform",
    "transform_back",
]


@jit
def _block_scales(x, scales, block, norm):  # type: ignore[no-untyped-def]
    room, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    if block > TILE:
        for b in range(-(-len(x) // block)):
            stop = min((b + 1) * block, len(x))
            scales[b] = scale_of_tiles(x, b * block, stop, norm == 2, room)
        return
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        tile = load_tile(x, at, stop, room)
        scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)


@jit
def _quantize(x, scales, packed, levels, width, block, norm, key, counter, shift):  # type: ignore[no-untyped-def]
    room, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    words = np.empty(TILE // 2, np.uint32)
    dither = words.view(np.uint16)
    codes = np.empty(TILE, np.uint8)
    span = min(block, TILE)
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
            rotate(dither, shift)
        for a in range(0, size, span):
            b = min(a + span, size)
            round_block(tile[a:b], dither[a:b], codes[a:b], scales[(at + a) // block], levels)
        pack_tile(codes, size, width, packed[at // 8 * width :])


@jit
def _dequantize(scales, packed, out, levels, width, block, ratio, accumulate):  # type: ignore[no-untyped-def]
    codes = np.empty(TILE, np.uint8)
    zero = np.int32(levels)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        unpack_tile(packed[at // 8 * width :], -(-count // 8) * 8, width, codes)
        store_codes(codes, zero, scales, out, at, count, block, ratio, accumulate)


@jit
def _dequantize_two(  # type: ignore[no-untyped-def]
    scales, packed, more_scales, more_packed, out, levels, width, block, ratio, accumulate
):
    codes, more_codes = np.empty(TILE, np.uint8), np.empty(TILE, np.uint8)
    span = min(block, TILE)
    zero = np.int32(levels)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        size, start = -(-count // 8) * 8, at // 8 * width
        unpack_tile(packed[start:], size, width, codes)
        unpack_tile(more_packed[start:], size, width, more_codes)
        for a in range(0, count, span):
            b = min(a + span, count)
            unit = scales[(at + a) // block] * ratio
            more_unit = more_scales[(at + a) // block] * ratio
            code, more_code, target = codes[a:b], more_codes[a:b], out[at + a : at + b]
            if accumulate:
                for i in range(b - a):
                    first = target[i] + level(code[i], zero) * unit
                    target[i] = first + level(more_code[i], zero) * more_unit
            else:
                for i in range(b - a):
                    first = level(code[i], zero) * unit
                    target[i] = first + level(more_code[i], zero) * more_unit


def philox(counter: Tensor, key: Key) -> Tensor:
    """See `reference.philox`; for tests, the other kernels make their random bits in place."""
    out = np.empty((4, counter.numel()), np.uint32)
    _philox_table(counter.to(torch.int64).numpy().reshape(-1), out, key_words(key))
    return torch.from_numpy(out.astype(np.int64)).view(4, *counter.shape)


@jit
def _philox_table(counter, out, key):  # type: ignore[no-untyped-def]
    c1, c2, c3, k0, k1 = key
    for j in range(len(counter)):
        a, b, c, d = philox_words(np.uint32(counter[j]), c1, c2, c3, k0, k1)
        out[0, j], out[1, j], out[2, j], out[3, j] = a, b, c, d


def block_scales(x: Tensor, scales: Tensor, *, block: int | None, norm: str) -> None:
    """See `reference.block_scales`."""
    values, out = array(x), array(scales)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        _block_scales(values[start:stop], out[start // size :], size, NORMS[norm])

    spread(x.numel(), size, run)


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
    shift: int = 0,
) -> None:
    """See `reference.quantize`. The norm of a block and its codes are one pass over memory."""
    values, scale, packed, words = array(x), array(scales), array(codes), key_words(key)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        part, part_scale = values[start:stop], scale[start // size :]
        part_packed, counter = packed[packed_nbytes(start, width) :], (offset + start) // 8
        _quantize(
            part, part_scale, part_packed, levels, width, size, NORMS[norm], words, counter, shift
        )

    spread(x.numel(), size, run)


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
    scale, packed, values = array(scales), array(codes), array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(weight / levels)

    def run(start: int, stop: int) -> None:
        part_scale, part_packed = scale[start // size :], packed[packed_nbytes(start, width) :]
        part = values[start:stop]
        _dequantize(part_scale, part_packed, part, levels, width, size, ratio, accumulate)

    spread(out.numel(), size, run)


def dequantize_mean(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
) -> None:
    """See `reference.dequantize_mean`. Two at a time are one pass over `out`."""
    rows, packed, values = [array(s) for s in scales], [array(c) for c in codes], array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(1 / len(rows) / levels)

    def run(start: int, stop: int) -> None:
        a, b, part = start // size, packed_nbytes(start, width), values[start:stop]
        for i in range(0, len(rows) - 1, 2):
            _dequantize_two(
                rows[i][a:], packed[i][b:], rows[i + 1][a:], packed[i + 1][b:], part,
                levels, width, size, ratio, i > 0,
            )  # fmt: skip
        if len(rows) % 2:
            last, last_packed = rows[-1][a:], packed[-1][b:]
            _dequantize(last, last_packed, part, levels, width, size, ratio, len(rows) > 1)

    spread(out.numel(), size, run)
