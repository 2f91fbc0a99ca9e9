"""What the reference kernels share: random bits, tiles, and the scales of blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.kernels.exact import sqrt, tree_sum
from gradwire.kernels.formats.layout import MAX_SCALE, MIN_SCALE, TILE, num_blocks
from gradwire.key import Key

_MASK = 0xFFFFFFFF


def philox(counter: Tensor, key: Key) -> Tensor:
    """Philox-4x32-7 [1]: four words for each counter word 0; shape (4, *counter.shape).

    Seven rounds are the fewest that its authors found to pass BigCrush; encoding is a sixth
    faster with them than with the usual ten.

    [1] Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c1, c2, c3, k0, k1 = key.words()
    c = [counter & _MASK, *(torch.full_like(counter, word) for word in (c1, c2, c3))]
    for _ in range(7):
        high0, low0 = _mulhilo(0xD2511F53, c[0])
        high1, low1 = _mulhilo(0xCD9E8D57, c[2])
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return torch.stack(c)


def _mulhilo(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 x 32 bit product, by halves so that int64 does not overflow."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, (high << 16 | low & 0xFFFF) & _MASK


def block_scales(x: Tensor, scales: Tensor, *, block: int | None, norm: str) -> None:
    """Write the "max" or "l2" norm of each block of `x` to `scales`; NaN if it holds inf or NaN.

    Norms are kept from `MIN_SCALE` to `MAX_SCALE`.
    The l2 norm is defined to the last bit: squares in float64, a halving tree over the values
    of a tile, and another over the tiles of a block.
    """
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


def stochastic_code(values: Tensor, scale: Tensor, dither: Tensor, levels: int) -> Tensor:
    """The scaled value to 16 fraction bits, plus 16 random ones, floored; 0 if scale is NaN."""
    finite = scale.isfinite()
    top = levels << 16
    scaled = (values * (torch.full_like(scale, top) / scale)).clamp(-top, top)
    whole = torch.where(finite, scaled, 0.0).round().to(torch.int64)
    return torch.where(finite, (whole + top + dither) >> 16, 0)
