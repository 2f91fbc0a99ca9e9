"""Calls of two levels a block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.kernels import cpu
from gradwire.kernels.formats.layout import num_blocks, packed_nbytes
from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.topk import TOP
from gradwire.lab.selftest.kernel_calls.values import (
    bitmap_nbytes,
    finite,
    soiled,
    ties_and_zeros,
    vectors,
)


def rows_of_blocks(numel: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Rows of kept values, with levels near each other, far from each other, and out of reach."""
    spread = finite(numel) * 1e4 ** finite(numel, seed=7)
    for x in (*vectors(numel), ties_and_zeros(numel), spread, finite(numel) * 1e-38):
        for block, count in TOP:
            kept = torch.empty(num_blocks(numel, block), count)
            bitmap = torch.empty(bitmap_nbytes(numel), dtype=torch.uint8)
            cpu.largest_of_blocks(x, bitmap, kept, block=block)
            yield kept, bitmap, block


@float32_only
def fit_levels(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (kept, _, _), bits in itertools.product(rows_of_blocks(numel), (1, 2)):
        levels = soiled(2 * len(kept), dtype=torch.uint8)
        codes = soiled(packed_nbytes(kept.numel(), bits), dtype=torch.uint8)
        yield call(kept, levels, codes, bits=bits)


@float32_only
def add_levels(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (kept, bitmap, block), bits in itertools.product(rows_of_blocks(numel), (1, 2)):
        levels = torch.empty(2 * len(kept), dtype=torch.uint8)
        room = torch.zeros(packed_nbytes(kept.numel(), bits), dtype=torch.uint8)
        number = cpu.fit_levels(kept, levels, room, bits=bits)
        codes = room[: packed_nbytes(number, bits)]
        for weight in (1.0, -1 / 3):
            yield call(bitmap, levels, codes, soiled(numel), block=block, bits=bits, weight=weight)
