"""The kernels in plain torch: slow, short, and the definition of every other backend.

32-bit words live in int64 tensors here, because torch lacks most of uint32. The layout of tiles,
random bits and packed codes is in `layout.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.codec import Key
from gradwire.kernels.layout import MIN_SCALE, TILE, fields, num_blocks, packed_nbytes
from gradwire.kernels.reference_elias import elias_decode, elias_encode, elias_sizes, omega
from gradwire.kernels.reference_subspace import combine

__all__ = [
    "block_scales", "combine", "dequantize", "elias_decode", "elias_encode", "elias_sizes",
    "omega", "philox", "quantize",
]  # fmt: skip

_MASK = 0xFFFFFFFF


def philox(counter: Tensor, key: Key) -> Tensor:
    """Philox-4x32-10 [1]: four words for each counter word 0; shape (4, *counter.shape).

    [1] Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c1, c2, c3, k0, k1 = key.words()
    c = [counter & _MASK, *(torch.full_like(counter, word) for word in (c1, c2, c3))]
    for _ in range(10):
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

    The l2 norm is defined to the last bit: squares in float64, a halving tree over the values
    of a tile, and another over the tiles of a block.
    """
    if not x.numel():
        return
    rows, size = num_blocks(x.numel(), block), block or -(-x.numel() // TILE) * TILE
    values = _padded(x.float(), rows * size).view(rows, -1, min(size, TILE))
    if norm == "max":
        scale = values.abs().amax((1, 2))
    else:
        scale = _tree_sum(_tree_sum(values.double().square())).sqrt().float()
    finite = values.isfinite().all(2).all(1)
    scales.copy_(torch.where(finite, scale.clamp_min(MIN_SCALE), torch.nan))


def _tree_sum(values: Tensor) -> Tensor:
    """Sum over the last dimension: pad with zeros to a power of two, then add halves."""
    size = 1 << (values.shape[-1] - 1).bit_length()
    values = torch.nn.functional.pad(values, (0, size - values.shape[-1]))
    while size > 1:
        size //= 2
        values = values[..., :size] + values[..., size:]
    return values[..., 0]


def _padded(x: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, size - x.numel()))


def quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
) -> None:
    """Round x / scale * levels to an integer up or down at random, and pack it.

    The code of a value is that integer plus `levels`, in [0, 2 * levels]. The fraction is kept
    to 16 bits, rounded to nearest, and met by 16 random bits: the bias is at most 2^-17 of a
    step, and below 2^-16 with the rounding of the product at 8 bits. `norm` says which scales
    to compute first; None takes them as given. A block whose scale is NaN gets zero codes.
    """
    if norm is not None:
        block_scales(x, scales, block=block, norm=norm)
    for start, stop, rows, size in _tiles(x.numel()):
        values = _padded(x[start:stop].float(), rows * size).view(rows, size)
        scale = _scale_of_values(scales, start, rows, size, block)
        finite = scale.isfinite()
        top = levels << 16
        scaled = (values * (torch.full_like(scale, top) / scale)).clamp(-top, top)
        whole = torch.where(finite, scaled, 0.0).round().to(torch.int64)
        dither = _half_words((offset + start) // 8, rows, size, key)
        code = (whole + top + dither) >> 16
        packed = _pack(torch.where(finite, code, 0), width)
        at = packed_nbytes(start, width)
        codes[at : at + packed.numel()] = packed


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
    """Write, or add, weight * scale / levels * (code - levels) to `out` (float32)."""
    ratio = torch.tensor(weight / levels, dtype=torch.float32)
    for start, stop, rows, size in _tiles(out.numel()):
        packed = codes[packed_nbytes(start, width) :][: packed_nbytes(rows * size, width)]
        level = (_unpack(packed.view(rows, -1), width) - levels).float()
        values = level * (_scale_of_values(scales, start, rows, size, block) * ratio)
        values = values.view(-1)[: stop - start]
        out[start:stop] = out[start:stop] + values if accumulate else values


def _tiles(numel: int) -> Iterator[tuple[int, int, int, int]]:
    """(first value, last, how many tiles, how large): the full tiles, then the last one."""
    full, rest = divmod(numel, TILE)
    if full:
        yield 0, full * TILE, full, TILE
    if rest:
        yield full * TILE, numel, 1, -(-rest // 8) * 8


def _scale_of_values(scales: Tensor, start: int, rows: int, size: int, block: int | None) -> Tensor:
    """The scale of every value of `rows` tiles of `size`, padding included."""
    if block is None:
        return scales.expand(rows, size)
    return scales[(start + torch.arange(rows * size)) // block].view(rows, size)


def _half_words(counter: int, rows: int, size: int, key: Key) -> Tensor:
    """16 random bits for every value of `rows` tiles of `size`."""
    counters = counter + torch.arange(rows * (size // 8)).view(rows, size // 8)
    words = philox(counters, key).movedim(0, 1)
    return torch.stack((words & 0xFFFF, words >> 16), -1).view(rows, size)


def _pack(code: Tensor, width: int) -> Tensor:
    """Tiles of codes (rows, size) to bytes, as `layout.py` has it."""
    packed = []
    for bits, shift in fields(width):
        part = ((code >> shift) & ((1 << bits) - 1)).view(code.shape[0], 8 // bits, -1)
        place = bits * torch.arange(8 // bits).view(-1, 1)
        packed.append((part << place).sum(1))
    return torch.cat(packed, 1).view(-1).to(torch.uint8)


def _unpack(packed: Tensor, width: int) -> Tensor:
    """The inverse of `_pack`, for `packed` of shape (rows, bytes of a tile)."""
    code = torch.zeros((), dtype=torch.int64)
    stride, start = packed.shape[1] // width, 0
    for bits, shift in fields(width):
        octets = packed[:, None, start : start + stride * bits].to(torch.int64)
        place = bits * torch.arange(8 // bits).view(-1, 1)
        part = (octets >> place) & ((1 << bits) - 1)
        code = code + (part.view(packed.shape[0], -1) << shift)
        start += stride * bits
    return code
