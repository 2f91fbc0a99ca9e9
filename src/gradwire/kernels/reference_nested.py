"""Nested dithered quantization in plain torch: the definition of the kernels of NDQSG.

A value in fine steps becomes q = floor(y + U) as in `reference_dithered.py`, but only its place in
a coarse cell of `ratio` fine steps is kept: the code is (q + (ratio - 1) / 2) modulo `ratio`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codec import Key
from gradwire.kernels import reference_tiles as tiles
from gradwire.kernels.layout import packed_nbytes
from gradwire.kernels.reference_pack import pack, unpack


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
    """Write the place of x / unit, rounded at random, in its coarse cell.

    At most 127 units from zero are told apart. A unit that is zero or NaN makes codes of q = 0.
    """
    top = 127 << 16
    for start, stop, rows, size in tiles.tiles(x.numel()):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        unit = tiles.scale_of_values(units, start, rows, size, block)
        scaled = (values * (torch.full_like(unit, 65536.0) / unit)).clamp(-top, top)
        whole = torch.where(unit > 0, scaled, 0.0).round().to(torch.int64)
        dither = tiles.half_words((offset + start) // 8, rows, size, key)
        level = torch.where(unit > 0, (whole + dither) >> 16, 0)
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
) -> None:
    """Decode by the mean y = total / count of `count` vectors, and add the result to `total`.

    With s the place in the cell, r = s - U + 1/2 - 2^-17 - alpha y / unit, and the result is
    y + alpha unit (r - ratio round(r / ratio)); it is 0 where the unit is.
    """
    part, a = (torch.tensor(value, dtype=torch.float32) for value in (1 / count, alpha))
    inverse = torch.tensor(1 / ratio, dtype=torch.float32)
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
        value = torch.where(unit == 0, 0.0, value)
        total[start:stop] = (so_far + value).view(-1)[: stop - start]
