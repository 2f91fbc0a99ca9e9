"""Rotated values in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.exact import sqrt, tree_sum
from gradwire.kernels.formats.layout import TILE, packed_nbytes
from gradwire.kernels.formats.rotation import (
    CEILING,
    COUNTERS,
    LANES,
    LARGEST,
    LEVELS,
    MARGIN,
    SLOTS,
    STRETCH,
    spans,
    thresholds,
)
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.pack import pack, unpack
from gradwire.key import Key


def quantize_rotated(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    bits: int,
    block: int,
    key: Key,
    offset: int = 0,
) -> None:
    for start, stop, rows, size in spans(x.numel(), block):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        finite = values.isfinite().all(1, keepdim=True)
        values, power = _near_one(torch.where(finite, values, 0.0).clamp(-CEILING, CEILING))
        square = _sum(values * values)
        y = turned(values, offset + start, size, key)
        bounds = sqrt(square * (size / 16)) * torch.tensor(thresholds(bits))
        index = (y.abs()[..., None] > bounds[:, None]).to(torch.int64).sum(2)  # bits: integers
        product = _sum(y.abs() * torch.tensor(LEVELS[bits])[index])
        scale = (square * (size / 4) / product * power).clamp_max(LARGEST)
        scale = torch.where(square > 0, scale, 0.0)
        at = start // block
        scales[at : at + rows] = torch.where(finite, scale, torch.nan)[:, 0]
        code = index | y.signbit().to(torch.int64) << (bits - 1)
        packed, at = pack(code.view(-1, TILE), bits), packed_nbytes(start, bits)
        codes[at : at + packed.numel()] = packed


def dequantize_rotated(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    out: Tensor,
    *,
    bits: int,
    block: int,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    ratio = torch.tensor(weight * MARGIN, dtype=torch.float32)
    for start, stop, rows, size in spans(out.numel(), block):
        a, b = start // block, packed_nbytes(start, bits)
        own = torch.stack([scale[a : a + rows, None] for scale in scales])
        finite, own = own.isfinite().all(0), torch.where(own.isfinite(), own, 0.0) * ratio
        y = -torch.zeros(rows, size)
        for unit, packed in zip(own, codes, strict=True):
            octets = packed[b : b + packed_nbytes(rows * size, bits)].view(rows * size // TILE, -1)
            y = y + unit * _levels(unpack(octets, bits).view(rows, size), bits)
        values = turned_back(y, offset + start, size, key, 4 / size / MARGIN)
        store(torch.where(finite, values, torch.nan), out[start:stop], accumulate)


def turned(values: Tensor, position: int, size: int, key: Key) -> Tensor:
    """Blocks of `size`, rotated, and size / 4 times as long."""
    first, second = _signs(position, len(values), size, key)
    return turn(turn(values * first, LANES) * second, 1)


def turned_back(y: Tensor, position: int, size: int, key: Key, factor: float) -> Tensor:
    """Blocks rotated back, size / 4 times as long, times `factor`."""
    first, second = _signs(position, len(y), size, key)
    values: Tensor = turn(turn(y, 1) * second, LANES) * first
    return (values * factor).clamp(-LARGEST, LARGEST)


def store(values: Tensor, out: Tensor, accumulate: bool) -> None:
    """Write blocks, or add them to what is there; NaN is one of many."""
    values = values.view(-1)[: out.numel()]
    out.copy_(torch.where(values.isnan(), values, out + values) if accumulate else values)


def _near_one(values: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of `values`, over a power of two that brings the largest magnitude to [1, 4)."""
    exponent = values.abs().amax(1, keepdim=True).view(torch.int32) >> 23
    exponent = exponent.clamp(1, 253)
    down, up = ((field << 23).view(torch.float32) for field in (254 - exponent, exponent))
    return values * down, up


def _signs(position: int, rows: int, size: int, key: Key) -> Tensor:
    """1 or -1 for every value of `rows` blocks, for both stages."""
    first, count = position % STRETCH // TILE, rows * size // TILE
    stretches = -(-(first + count) * TILE // STRETCH)
    halves = tiles.half_words(position // STRETCH * COUNTERS, stretches, TILE, key)
    words = halves.view(-1, 2, LANES, 2)[first : first + count]
    words = words[..., 0] | words[..., 1] << 16
    flags = words[:, :, None] >> torch.arange(TILE // LANES).view(-1, 1) & 1
    return (1.0 - 2.0 * flags.float()).transpose(0, 1).reshape(2, rows, size)


def turn(values: Tensor, first: int) -> Tensor:
    """Sums and differences of pairs, at distances from `first` to half the block."""
    rows, size = values.shape
    distance = first
    while distance < size:
        a, b = values.view(rows, -1, 2, distance).unbind(2)
        values = torch.stack((a + b, a - b), 2).view(rows, size)
        distance *= 2
    return values


def _sum(values: Tensor) -> Tensor:
    """The sum of each row, in the order of `formats/rotation.py`."""
    parts = values.view(values.shape[0], -1, SLOTS)
    total = parts[:, 0]
    for i in range(1, parts.shape[1]):
        total = total + parts[:, i]
    return tree_sum(total)[:, None]


def _levels(code: Tensor, bits: int) -> Tensor:
    index = code & ((1 << (bits - 1)) - 1)
    level = torch.tensor(LEVELS[bits])[index]
    return torch.where(code >> (bits - 1) > 0, -level, level)
