"""Nested dithered quantization in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.dithered import dithered_level
from gradwire.kernels.reference.pack import pack, unpack
from gradwire.key import Key


def quantize_nested(
    x: Tensor,
    units: Tensor,
    codes: Tensor,
    *,
    ratio: int,
    width: int,
    block: int | None,
    key: Key,
    offset: int = 0,
) -> None:
    for start, stop, rows, size in tiles.tiles(x.numel()):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        unit = tiles.scale_of_values(units, start, rows, size, block)
        dither = tiles.half_words((offset + start) // 8, rows, size, key)
        level = dithered_level(values, unit, dither)
        packed = pack((level + ratio // 2) % ratio, width)
        at = packed_nbytes(start, width)
        codes[at : at + packed.numel()] = packed


def add_nested(
    units: Tensor,
    codes: Tensor,
    total: Tensor,
    *,
    count: int,
    ratio: int,
    alpha: float,
    width: int,
    block: int | None,
    key: Key,
    offset: int = 0,
    weight: float = 1.0,
) -> None:
    numbers = (1 / (count * weight), alpha, weight, 1 / ratio)
    part, a, share, inverse = (torch.tensor(value, dtype=torch.float32) for value in numbers)
    for start, stop, rows, size in tiles.tiles(total.numel()):
        packed = codes[packed_nbytes(start, width) :][: packed_nbytes(rows * size, width)]
        place = unpack(packed.view(rows, -1), width) - ratio // 2
        dither = tiles.half_words((offset + start) // 8, rows, size, key)
        exact = ((place << 17) - 2 * dither + 65535).float() * 2.0**-17
        unit = tiles.scale_of_values(units, start, rows, size, block)
        so_far = tiles.padded(total[start:stop], rows * size).view(rows, size)
        y = so_far * part
        r = exact - y * (a / unit)
        value = y + (r - (r * inverse).round() * ratio) * (unit * a)
        added = torch.where(unit == 0, so_far, so_far + value * share)
        total[start:stop] = added.view(-1)[: stop - start]
