"""Calls of the largest values of blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradwire.kernels.formats.layout import num_blocks
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float
from gradwire.lab.selftest.kernel_calls.values import (
    bitmap_nbytes,
    soiled,
    some,
    ties_and_zeros,
    vectors,
)

TOP = [(8, 1), (64, 5), (512, 16), (4096, 64), (1024, 128), (8192, 300)]
"""(block, count)"""


@every_float
def largest_of_blocks(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x in (*vectors(numel, dtype), ties_and_zeros(numel, dtype)):
        for block, count in some(TOP, dtype):
            bitmap = soiled(bitmap_nbytes(numel), dtype=torch.uint8)
            yield call(x, bitmap, soiled(num_blocks(numel, block), count), block=block)
