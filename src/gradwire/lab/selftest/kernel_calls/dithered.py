"""Calls of the subtractive dither."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float, float32_only
from gradwire.lab.selftest.kernel_calls.values import (
    BLOCKS,
    KEY,
    STORES,
    WIDTHS,
    octets,
    scales_for,
    soiled,
    units_for,
    vectors,
)


@every_float
def quantize_dithered(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    codes = soiled(packed_nbytes(numel, 8), dtype=torch.uint8)
    for x, block, zero in itertools.product(vectors(numel, dtype), BLOCKS, (8, 127)):
        how = {"zero": zero, "block": block, "key": KEY, "offset": 1024}
        yield call(x, units_for(x, block, 127), codes, **how)


@float32_only
def dequantize_dithered(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for width, block, store in itertools.product(WIDTHS, BLOCKS, STORES):
        how = {"width": width, "block": block, "key": KEY, "offset": 512, **store}
        units, codes = scales_for(numel, block), octets(numel, width)
        yield call(units, codes, soiled(numel), zero=2 ** (width - 1) - 1, **how)
