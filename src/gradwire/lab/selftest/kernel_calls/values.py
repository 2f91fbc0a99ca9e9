"""What kernels are given: floats of every kind, codes, scales and bitmaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels import cpu
from gradwire.kernels.formats.layout import MIN_SCALE, num_blocks, packed_nbytes
from gradwire.kernels.reference.pack import pack_codes
from gradwire.key import Key

KEY = Key(seed=0x1234567890ABCDEF, step=7, tensor=3, rank=2, hop=1)


LENGTHS = [0, 1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1500, 5003]


BLOCKS = [8, 64, 512, 1024, None]


WIDTHS = range(2, 9)


STORES = [{}, {"weight": -1 / 3, "accumulate": True}]


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def finite(numel: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Values of many magnitudes, with zeros of both signs and a subnormal among them."""
    return _finite(numel, seed).to(dtype, copy=True)


@lru_cache(64)
def _finite(numel: int, seed: int) -> Tensor:
    magnitudes = 10 ** (-5 * torch.rand(numel, generator=random(seed)))
    x = torch.randn(numel, generator=random(seed + 1)) * magnitudes
    x[16::17], x[8::17], x[5:6] = 0, -0.0, 1e-41
    return x


def spoilt(numel: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """The same with inf and NaN, one in each of some blocks, and a block of zeros."""
    x = finite(numel, dtype, seed)
    x[300:301], x[555:556], x[1100:1101] = torch.inf, -torch.inf, torch.nan
    x[64:128] = 0
    return x


def huge(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values up to the largest there is."""
    top = torch.finfo(dtype).max
    x = finite(numel).clamp(-1, 1).double() * top
    x[3:4], x[4:5] = top, -top
    return x.to(dtype)


def vectors(numel: int, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    yield finite(numel, dtype)
    if numel > 500:
        yield spoilt(numel, dtype)
    if numel > 100:
        yield huge(numel, dtype)


def ties_and_zeros(numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Many of the same magnitude, few that are not zero, and a block of one magnitude."""
    x = finite(numel, dtype).round()
    x[600:1100] = 3.0
    return x


def soiled(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, 165 if dtype == torch.uint8 else -77, dtype=dtype)


def octets(numel: int, width: int, seed: int = 0) -> Tensor:
    """Packed codes of any value at all."""
    nbytes = packed_nbytes(numel, width)
    return torch.randint(0, 256, (nbytes,), generator=random(seed), dtype=torch.uint8)


def codes_up_to(top: int, numel: int, width: int, seed: int = 0) -> Tensor:
    """Packed codes from 0 to `top`, those of the padding included."""
    padded = -(-numel // 8) * 8
    codes = torch.randint(0, top + 1, (padded,), generator=random(seed))
    packed = torch.empty(packed_nbytes(numel, width), dtype=torch.uint8)
    pack_codes(codes, packed, width)
    return packed


def scales_for(numel: int, block: int | None, seed: int = 1) -> Tensor:
    """Scales of blocks, with a NaN, the least one and large ones among them."""
    scales = torch.rand(num_blocks(numel, block), generator=random(seed)) + 0.01
    scales[2::7], scales[3::7], scales[5::7] = torch.nan, MIN_SCALE, 1e30
    return scales


def units_for(x: Tensor, block: int | None, levels: int) -> Tensor:
    """Steps of blocks: 0 for blocks of zeros, and NaN for those that are not finite."""
    peaks = torch.empty(num_blocks(x.numel(), block))
    cpu.block_scales(x, peaks, block=block, norm="max")
    return torch.where(peaks <= MIN_SCALE, 0.0, peaks / levels)


def ratios_for(numel: int, block: int | None) -> tuple[Tensor, int | None]:
    """Ratios of two blocks each, and how many values that are."""
    segment = 2 * block if block else None
    return 0.5 + torch.rand(num_blocks(numel, segment), generator=random(6)), segment


def bitmap_nbytes(numel: int) -> int:
    return 8 * -(-numel // 64)


def bitmaps(numel: int) -> Iterator[Tensor]:
    for density in (0.0, 0.002, 0.1, 0.5, 1.0):
        bits = torch.rand(numel, generator=random(5)) < density
        padded = torch.nn.functional.pad(bits, (0, 8 * bitmap_nbytes(numel) - numel))
        yield torch.from_numpy(np.packbits(padded.numpy(), bitorder="little"))


T = TypeVar("T")


def some(ways: Sequence[T], dtype: torch.dtype) -> Sequence[T]:
    """All of them for float32; a third for floats of 16 bits, which are only read differently."""
    return ways if dtype == torch.float32 else ways[::3]
