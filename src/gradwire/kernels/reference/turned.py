"""Values that are rotated and stay floats, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.rotation import CEILING, MARGIN, SHORTER, spans
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.rotated import store, turned, turned_back
from gradwire.key import Key


def rotate_blocks(x: Tensor, out: Tensor, *, block: int, key: Key, offset: int = 0) -> None:
    for start, stop, rows, size in spans(x.numel(), block):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        finite = values.isfinite().all(1, keepdim=True)
        values = torch.where(finite, values, 0.0).clamp(-CEILING, CEILING) * (4 / size * SHORTER)
        y = turned(values, offset + start, size, key)
        out[start : start + rows * size] = torch.where(finite, y, torch.nan).view(-1)


def rotate_blocks_back(
    y: Tensor, out: Tensor, *, block: int, key: Key, offset: int = 0, accumulate: bool = False
) -> None:
    for start, stop, rows, size in spans(out.numel(), block):
        values = y[start : start + rows * size].view(rows, size)
        finite = values.isfinite().all(1, keepdim=True)
        values = torch.where(finite, values, 0.0) * (MARGIN / SHORTER)
        values = turned_back(values, offset + start, size, key, 4 / size / MARGIN)
        store(torch.where(finite, values, torch.nan), out[start:stop], accumulate)
