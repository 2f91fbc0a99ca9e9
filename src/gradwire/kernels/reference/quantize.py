"""Stochastic rounding to levels of a scale in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.layout import MIN_SCALE, packed_nbytes
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.dithered import dequantize_dithered
from gradwire.kernels.reference.pack import pack, unpack
from gradwire.kernels.reference.scales import block_scales
from gradwire.key import Key


def quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    debt: Debt | None = None,
    *,
    levels: float,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
    shift: int = 0,
    dithered: bool = False,
) -> None:
    if debt is not None:
        x = debt.source(x)
    if norm is not None:
        block_scales(x, scales, block=block, norm=norm)
    for start, stop, rows, size in tiles.tiles(x.numel()):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        scale = tiles.scale_of_values(scales, start, rows, size, block)
        dither = (tiles.half_words((offset + start) // 8, rows, size, key) + shift) & 0xFFFF
        packed = pack(tiles.stochastic_code(values, scale, dither, levels), width)
        at = packed_nbytes(start, width)
        codes[at : at + packed.numel()] = packed
    if debt is None:
        return
    how: dict[str, Any] = {"width": width, "block": block, "weight": -1.0, "accumulate": True}
    if dithered:
        steps = torch.where(scales <= MIN_SCALE, 0.0, scales / levels)
        how |= {"zero": int(levels), "key": key, "offset": offset}
        dequantize_dithered(steps, codes, debt.owed, **how)
    else:
        dequantize(scales, codes, debt.owed, levels=int(levels), **how)
    debt.leave()


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
    ratio = torch.tensor(weight / levels, dtype=torch.float32)
    for start, stop, rows, size in tiles.tiles(out.numel()):
        packed = codes[packed_nbytes(start, width) :][: packed_nbytes(rows * size, width)]
        level = (unpack(packed.view(rows, -1), width) - levels).float()
        values = level * (tiles.scale_of_values(scales, start, rows, size, block) * ratio)
        values = values.view(-1)[: stop - start]
        out[start:stop] = out[start:stop] + values if accumulate else values


def dequantize_mean(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
) -> None:
    for i, (scale, packed) in enumerate(zip(scales, codes, strict=True)):
        dequantize(
            scale, packed, out, levels=levels, width=width, block=block, weight=1 / len(scales),
            accumulate=i > 0,
        )  # fmt: skip
