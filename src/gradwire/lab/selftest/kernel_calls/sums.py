"""Calls of sums of packed codes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from gradwire.kernels.formats.fields import Dither, field_width
from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.values import (
    BLOCKS,
    KEY,
    STORES,
    codes_up_to,
    octets,
    scales_for,
    soiled,
)

SUMS = [(1, 1), (1, 3), (7, 2), (7, 4), (7, 18), (7, 19), (127, 2), (127, 64), (127, 200)]
"""(levels, terms): of up to 16 bits, some just below a byte and some just above."""
HALVES = [(0.5, 1), (0.5, 3), (1.5, 2), (7.5, 17), (127.5, 257)]
"""The same of grids without a zero."""
GRIDS = [*itertools.product(SUMS, BLOCKS), *itertools.product(HALVES, BLOCKS[1::2])]
"""((levels, terms), block)"""


def dithers(levels: float, terms: int) -> tuple[Dither | None, ...]:
    """How sums are read; those of half steps always have a dither."""
    dither = Dither(KEY, 1024, terms, 777, 65_536 - terms)
    return (dither,) if 2 * levels * terms % 2 else (None, dither)


@float32_only
def add_packed(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for levels, terms in (*SUMS, *HALVES):
        width, total_width = field_width(levels, 1), field_width(levels, terms)
        nbytes = packed_nbytes(numel, width)
        codes = soiled(terms, nbytes + 24, dtype=torch.uint8)[:, 8 : 8 + nbytes]
        for seed, row in enumerate(codes):
            row.copy_(codes_up_to(int(2 * levels), numel, width, seed))
        total = soiled(packed_nbytes(numel, total_width), dtype=torch.uint8)
        yield call(codes, total, numel=numel, width=width, total_width=total_width)


@float32_only
def dequantize_sum(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (levels, terms), block in GRIDS:
        width = field_width(levels, terms)
        how = {"levels": levels, "width": width, "block": block, "terms": terms}
        for store, dither in itertools.product(STORES, dithers(levels, terms)):
            scales, total = scales_for(numel, block), octets(numel, width)
            yield call(scales, total, soiled(numel), dither=dither, **how, **store)
