"""Calls of the scales of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from gradwire.kernels.formats.layout import num_blocks
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float
from gradwire.lab.selftest.kernel_calls.values import BLOCKS, ratios_for, soiled, vectors


@every_float
def block_scales(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x, block, norm in itertools.product(vectors(numel, dtype), BLOCKS, ("max", "l2")):
        yield call(x, soiled(num_blocks(numel, block)), block=block, norm=norm)


@every_float
def block_steps(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x, block in itertools.product(vectors(numel, dtype), BLOCKS):
        ratios, segment = ratios_for(numel, block)
        yield call(x, ratios, soiled(num_blocks(numel, block)), segment=segment, block=block)
