"""Calls of codes in words, whose sums are sums of codes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from gradwire.kernels import cpu
from gradwire.kernels.formats.fields import field_width, num_words
from gradwire.kernels.formats.layout import num_blocks
from gradwire.lab.selftest.kernel_calls.sums import GRIDS, dithers
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float, float32_only
from gradwire.lab.selftest.kernel_calls.values import (
    BLOCKS,
    KEY,
    STORES,
    finite,
    scales_for,
    soiled,
    some,
    vectors,
)

WIDE = [((127, 1 << 23), block) for block in BLOCKS]
"""The widest field, a word."""


@every_float
def quantize_fields(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (levels, terms), block in some([*GRIDS, *WIDE], dtype):
        width = field_width(levels, terms)
        how = {"levels": levels, "width": width, "block": block, "key": KEY, "offset": 1024}
        words = soiled(num_words(numel, width), dtype=torch.int32)
        for x, norm in itertools.product(vectors(numel, dtype), ("max", "l2")):
            yield call(x, soiled(num_blocks(numel, block)), words, norm=norm, **how)
        x, scales = finite(numel, dtype), scales_for(numel, block)
        yield call(x, scales, words, norm=None, shift=40_000, **how)


@float32_only
def dequantize_fields(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (levels, terms), block in [*GRIDS, *WIDE]:
        how: dict[str, Any] = {"levels": levels, "width": field_width(levels, terms)}
        how["block"] = block
        scales, x = scales_for(numel, block), finite(numel)
        words = torch.empty(num_words(numel, how["width"]), dtype=torch.int32)
        cpu.quantize_fields(x, scales.clone(), words, norm="max", key=KEY, **how)
        words *= terms  # the sum of what so many workers send who have the same
        for store, dither in itertools.product(STORES, dithers(levels, terms)):
            yield call(scales, words, soiled(numel), terms=terms, dither=dither, **how, **store)
