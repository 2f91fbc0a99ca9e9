"""Subtractive dither in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.layout import MAX_SCALE, packed_nbytes
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.pack import pack, unpack
from gradwire.key import Key


def quantize_dithered(
    x: Tensor,
    units: Tensor,
    codes: Tensor,
    *,
    zero: int,
    block: int | None,
    key: Key,
    offset: int = 0,
) -> None:
    for start, stop, rows, size in tiles.tiles(x.numel()):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        unit = tiles.scale_of_values(units, start, rows, size, block)
        dither = tiles.half_words((offset + start) // 8, rows, size, key)
        level = dithered_level(values, unit, dither)
        packed = pack((level + zero) & 0xFF, 8)
        codes[start : start + packed.numel()] = packed


def dithered_level(values: Tensor, unit: Tensor, dither: Tensor) -> Tensor:
    """Values in units to 16 fraction bits, plus 16 random ones, floored; 0 unless unit > 0."""
    factor = torch.full_like(unit, 65536.0) / unit
    top = (factor * MAX_SCALE).clamp_max(127 << 16)
    scaled = torch.minimum(torch.maximum(values * factor, -top), top)
    whole = torch.where(unit > 0, scaled, 0.0).round().to(torch.int64)
    return torch.where(unit > 0, (whole + dither) >> 16, 0)


def dequantize_dithered(
    units: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    zero: int,
    width: int,
    block: int | None,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    ratio = torch.tensor(weight * 2.0**-17, dtype=torch.float32)
    for start, stop, rows, size in tiles.tiles(out.numel()):
        packed = codes[packed_nbytes(start, width) :][: packed_nbytes(rows * size, width)]
        code = unpack(packed.view(rows, -1), width)
        level = ((code - zero + 128) & 0xFF) - 128
        dither = tiles.half_words((offset + start) // 8, rows, size, key)
        exact = ((level << 17) - 2 * dither + 65535).float()
        values = exact * (tiles.scale_of_values(units, start, rows, size, block) * ratio)
        values = values.view(-1)[: stop - start]
        out[start:stop] = out[start:stop] + values if accumulate else values
