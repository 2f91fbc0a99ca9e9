"""Calls of the nested quantizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float, float32_only
from gradwire.lab.selftest.kernel_calls.values import (
    BLOCKS,
    KEY,
    codes_up_to,
    finite,
    soiled,
    spoilt,
    units_for,
    vectors,
)

NESTED = [(3, 2), (5, 3), (15, 4), (251, 8)]
"""(ratio, width)"""


@every_float
def quantize_nested(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (ratio, width), block in itertools.product(NESTED, BLOCKS):
        how = {"ratio": ratio, "width": width, "block": block, "key": KEY, "offset": 512}
        codes = soiled(packed_nbytes(numel, width), dtype=torch.uint8)
        for x in vectors(numel, dtype):
            yield call(x, units_for(x, block, 7), codes, **how)


@float32_only
def add_nested(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (ratio, width), block in itertools.product(NESTED, BLOCKS):
        how = {"ratio": ratio, "width": width, "block": block, "key": KEY, "offset": 512}
        x = spoilt(numel)
        units, codes = units_for(x, block, 7), codes_up_to(ratio - 1, numel, width)
        total = finite(numel, seed=1)
        total[2000:2001] = torch.nan
        for weight in (1.0, 0.2):
            yield call(units, codes, total, count=3, alpha=0.9, weight=weight, **how)
