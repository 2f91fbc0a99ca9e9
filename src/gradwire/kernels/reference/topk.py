"""The largest values of every block in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.layout import num_blocks
from gradwire.kernels.reference.sparse import write_bits
from gradwire.kernels.reference.tiles import padded


def largest_of_blocks(x: Tensor, bitmap: Tensor, kept: Tensor, *, block: int) -> None:
    rows, count = num_blocks(x.numel(), block), kept.shape[1]
    values = padded(x.float(), rows * block).view(rows, block)
    patterns = values.view(torch.int32).to(torch.int64) & 0x7FFFFFFF
    finite = patterns.amax(1, keepdim=True) < 0x7F800000
    sizes = (x.numel() - block * torch.arange(rows)).clamp_max(block)[:, None]
    falling = patterns.sort(dim=1, descending=True, stable=True).indices
    ranks = falling.argsort(1)
    chosen = (ranks * block < sizes * count) & (patterns > 0) & finite
    write_bits(chosen.view(-1)[: x.numel()], bitmap)
    first = (~chosen).to(torch.int64).sort(dim=1, stable=True).indices[:, :count]
    found = torch.where(chosen, values, 0.0).gather(1, first)
    kept.copy_(torch.where(finite, found, torch.nan))
