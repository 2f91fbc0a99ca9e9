"""Sums of packed codes in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.fields import Dither, zero_of
from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.fields import store_levels
from gradwire.kernels.reference.pack import pack_codes, unpack, unpack_codes


def add_packed(codes: Tensor, total: Tensor, *, numel: int, width: int, total_width: int) -> None:
    padded = -(-numel // 8) * 8
    # bits: integers
    sums = torch.stack([unpack_codes(packed, padded, width) for packed in codes]).sum(0)
    pack_codes(sums, total, total_width)


def dequantize_sum(
    scales: Tensor,
    total: Tensor,
    out: Tensor,
    *,
    levels: float,
    width: int,
    block: int | None,
    terms: int = 1,
    weight: float = 1.0,
    accumulate: bool = False,
    dither: Dither | None = None,
) -> None:
    zero, dither = zero_of(levels, terms, dither)
    for start, stop, rows, size in tiles.tiles(out.numel()):
        packed = total[packed_nbytes(start, width) :][: packed_nbytes(rows * size, width)]
        store_levels(
            unpack(packed.view(rows, -1), width) - zero, scales, out, start, stop,
            ratio=weight / levels, block=block, accumulate=accumulate, dither=dither,
        )  # fmt: skip
