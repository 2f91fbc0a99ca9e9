"""The scales of blocks in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.exact import sqrt, tree_sum
from gradwire.kernels.formats.layout import MAX_SCALE, MIN_SCALE, MOST, TILE, num_blocks
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


def block_steps(
    x: Tensor, ratios: Tensor, steps: Tensor, *, segment: int | None, block: int | None
) -> None:
    if not x.numel():
        return
    peaks, rms = moments(x, block)
    starts = torch.arange(len(steps)) * (block or 0)
    wanted = rms * ratios[starts // (segment or x.numel())]
    found = torch.maximum(wanted, peaks / MOST).clamp_max(MAX_SCALE)
    found = torch.where(peaks <= MIN_SCALE, 0.0, found)
    steps.copy_(torch.where(peaks.isnan(), torch.nan, found))  # one NaN of many


def moments(x: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
    """The largest magnitude and the root mean square of each block; NaN if it holds inf or NaN."""
    count = num_blocks(x.numel(), block)
    peaks, norms = torch.empty(count), torch.empty(count)
    block_scales(x, peaks, block=block, norm="max")
    block_scales(x, norms, block=block, norm="l2")
    sizes = torch.full_like(norms, float(block or x.numel()))
    sizes[-1:] = float(x.numel() - (count - 1) * (block or x.numel()))
    return peaks, norms / sqrt(sizes)
