"""Means of floats in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.reference import tiles
from gradwire.key import Key


def mean_floats(rows: Tensor, out: Tensor, *, key: Key, offset: int = 0) -> None:
    total = torch.zeros(out.numel(), dtype=torch.float64)
    for row in rows:
        total = total + row.double()
    mean = (total * (1 / len(rows))).float()
    if out.dtype == torch.float32:
        out.copy_(mean)
        return
    narrow = _to_bfloat16 if out.dtype == torch.bfloat16 else _to_float16
    bits = out.view(torch.int16)
    for start, stop, count, size in tiles.tiles(out.numel()):
        dither = tiles.half_words((offset + start) // 8, count, size, key).view(-1)
        bits[start:stop] = narrow(mean[start:stop], dither[: stop - start]).to(torch.int16)


def _to_bfloat16(values: Tensor, dither: Tensor) -> Tensor:
    """The bits of one of the two bfloat16 next to each value."""
    bits = values.view(torch.int32).long() & 0xFFFFFFFF
    return torch.where(values.isnan(), 0x7FC0, (bits + dither) >> 16)


def _to_float16(values: Tensor, dither: Tensor) -> Tensor:
    """The bits of one of the two float16 next to each value; beyond the largest lies infinity."""
    bits = values.view(torch.int32).long() & 0xFFFFFFFF
    normal = ((bits & 0x7FFFFFFF) + (dither >> 3) >> 13) - (112 << 10)
    is_small = values.abs() < 2.0**-14
    steps = torch.where(is_small, values.abs(), 0.0) * 2.0**40  # of 2^-24, with 16 more bits
    small = (steps.round().long() + dither) >> 16
    magnitude = torch.where(is_small, small, normal.clamp_max(0x7C00))
    return torch.where(values.isnan(), 0x7E00, bits >> 16 & 0x8000 | magnitude)
