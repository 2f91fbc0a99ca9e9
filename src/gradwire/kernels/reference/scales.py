"""The scales of blocks in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.exact import sqrt, tree_sum
from gradwire.kernels.formats.layout import MAX_SCALE, MIN_SCALE, TILE, num_blocks
from gradwire.kernels.reference.tiles import padded


def block_scales(x: Tensor, scales: Tensor, *, block: int | None, norm: str) -> None:
    if not x.numel():
        return
    rows, size = num_blocks(x.numel(), block), block or -(-x.numel() // TILE) * TILE
    values = padded(x.float(), rows * size).view(rows, -1, min(size, TILE))
    if norm == "max":
        scale = values.abs().amax((1, 2))
    else:
        scale = sqrt(tree_sum(tree_sum(values.double().square()))).float()
    finite = values.isfinite().all(2).all(1)
    scales.copy_(torch.where(finite, scale.clamp(MIN_SCALE, MAX_SCALE), torch.nan))


def block_moments(x: Tensor, peaks: Tensor, norms: Tensor, *, block: int | None) -> None:
    block_scales(x, peaks, block=block, norm="max")
    block_scales(x, norms, block=block, norm="l2")
