"""Calls of the levels that are powers of two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

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

EXPONENTIAL = [(2, 0), (3, 1), (4, 2), (4, 6), (5, 3), (6, 0), (7, 1), (8, 10)]
"""(width, headroom)"""


@every_float
def exp_quantize(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (width, headroom), block in itertools.product(some(EXPONENTIAL, dtype), BLOCKS):
        how = {"width": width, "headroom": headroom, "block": block, "key": KEY, "offset": 1024}
        codes = soiled(packed_nbytes(numel, width), dtype=torch.uint8)
        for x, norm in itertools.product(vectors(numel, dtype), ("max", "l2")):
            yield call(x, soiled(num_blocks(numel, block)), codes, norm=norm, **how)
        yield call(finite(numel, dtype), scales_for(numel, block), codes, norm=None, **how)


@float32_only
def exp_dequantize(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (width, headroom), block, store in itertools.product(EXPONENTIAL, BLOCKS, STORES):
        how = {"width": width, "headroom": headroom, "block": block, **store}
        yield call(scales_for(numel, block), octets(numel, width), soiled(numel), **how)


@float32_only
def exp_reduce(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for width in WIDTHS:
        into, term = (octets(numel, width, seed) for seed in range(2))
        yield call(into, term, width=width, key=KEY, offset=512)
        yield call(into, into.clone(), width=width, key=KEY)
