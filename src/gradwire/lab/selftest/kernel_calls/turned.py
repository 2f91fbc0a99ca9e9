"""Calls of rotations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from gradwire.kernels.formats.rotation import padded_numel
from gradwire.lab.selftest.kernel_calls.rotated import ROTATIONS
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float, float32_only
from gradwire.lab.selftest.kernel_calls.values import KEY, soiled, some, vectors


@every_float
def rotate_blocks(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x in vectors(numel, dtype):
        for _, block in some(ROTATIONS, dtype):
            out = soiled(padded_numel(numel, block))
            yield call(x, out, block=block, key=KEY, offset=3 * block)


@float32_only
def rotate_blocks_back(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (_, block), accumulate in itertools.product(ROTATIONS, (False, True)):
        for y in vectors(padded_numel(numel, block)):
            how = {"block": block, "key": KEY, "offset": block, "accumulate": accumulate}
            yield call(y, soiled(numel), **how)
