"""What the reference kernels share: tiles, the scales and the random bits of their values."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.kernels.formats.layout import TILE
from gradwire.kernels.reference.philox import philox
from gradwire.key import Key


def padded(x: Tensor, size: int) -> Tensor:
    """`x` and zeros after it."""
    return torch.nn.functional.pad(x, (0, size - x.numel()))


def tiles(numel: int) -> Iterator[tuple[int, int, int, int]]:
    """(first value, last, how many tiles, how large): the full tiles, then the last one."""
    full, rest = divmod(numel, TILE)
    if full:
        yield 0, full * TILE, full, TILE
    if rest:
        yield full * TILE, numel, 1, -(-rest // 8) * 8


def scale_of_values(scales: Tensor, start: int, rows: int, size: int, block: int | None) -> Tensor:
    """The scale of every value of `rows` tiles of `size`, padding included."""
    if block is None:
        return scales.expand(rows, size)
    return scales[(start + torch.arange(rows * size)) // block].view(rows, size)


def half_words(counter: int, rows: int, size: int, key: Key) -> Tensor:
    """16 random bits for every value of `rows` tiles of `size`."""
    counters = counter + torch.arange(rows * (size // 8)).view(rows, size // 8)
    words = philox(counters, key).movedim(0, 1)
    return torch.stack((words & 0xFFFF, words >> 16), -1).view(rows, size)


def stochastic_code(values: Tensor, scale: Tensor, dither: Tensor, levels: float) -> Tensor:
    """The scaled value to 16 fraction bits, plus 16 random ones, floored; 0 if scale is NaN."""
    finite = scale.isfinite()
    top = int(levels * (1 << 16))
    scaled = (values * (torch.full_like(scale, top) / scale)).clamp(-top, top)
    whole = torch.where(finite, scaled, 0.0).round().to(torch.int64)
    return torch.where(finite, (whole + top + dither) >> 16, 0)
