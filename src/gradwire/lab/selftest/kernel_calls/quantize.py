"""Calls of the quantizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.layout import num_blocks, packed_nbytes
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float, float32_only
from gradwire.lab.selftest.kernel_calls.values import (
    BLOCKS,
    KEY,
    STORES,
    WIDTHS,
    finite,
    octets,
    scales_for,
    soiled,
    some,
    vectors,
)


@every_float
def quantize(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for width, block in itertools.product(some(WIDTHS, dtype), BLOCKS):
        levels = 2 ** (width - 1) - 1
        how = {"levels": levels, "width": width, "block": block, "key": KEY, "offset": 1024}
        codes = soiled(packed_nbytes(numel, width), dtype=torch.uint8)
        for x, norm in itertools.product(vectors(numel, dtype), ("max", "l2")):
            yield call(x, soiled(num_blocks(numel, block)), codes, norm=norm, **how)
        x, scales = finite(numel, dtype), scales_for(numel, block)
        for half in (0, 0.5):
            yield call(x, scales, codes, norm=None, shift=40_000, **how | {"levels": levels + half})
        if width % 3 != 2:
            continue
        for i, (x, norm) in enumerate(
            zip(vectors(numel, dtype), ("max", "l2", "max"), strict=False)
        ):
            debt, room = debt_for(x, i + width), soiled(num_blocks(numel, block))
            dithered = (i + BLOCKS.index(block)) % 2 == 0
            yield call(x, room, codes, debt, norm=norm, dithered=dithered, **how)
        yield call(x := finite(numel), scales, codes, Debt(x), norm=None, **how)


def debt_for(x: Tensor, which: int) -> Debt:
    """One of which all is due, or a part, or before anything was owed."""
    residual, shares = finite(x.numel(), seed=2), torch.tensor([0.3, 0.7])
    owed = soiled(x.numel())
    return (Debt(owed, residual), Debt(owed, residual, shares), Debt(owed))[which % 3]


@float32_only
def dequantize(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for width, block, store in itertools.product(WIDTHS, BLOCKS, STORES):
        how = {"levels": 2 ** (width - 1) - 1, "width": width, "block": block, **store}
        yield call(scales_for(numel, block), octets(numel, width), soiled(numel), **how)


@float32_only
def dequantize_mean(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for width, block, count in itertools.product(WIDTHS, BLOCKS, range(1, 5)):
        how = {"levels": 2 ** (width - 1) - 1, "width": width, "block": block}
        scales = [scales_for(numel, block, seed) for seed in range(count)]
        codes = [octets(numel, width, seed) for seed in range(count)]
        yield call(scales, codes, soiled(numel), **how)
