"""Calls of the rotated quantizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from gradwire.kernels.formats.layout import num_blocks
from gradwire.kernels.formats.rotation import padded_numel
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float, float32_only
from gradwire.lab.selftest.kernel_calls.values import (
    KEY,
    STORES,
    octets,
    scales_for,
    soiled,
    some,
    ties_and_zeros,
    vectors,
)

ROTATIONS = [(1, 512), (2, 1024), (3, 4096), (4, 2048), (2, 4096), (4, 512), (1, 1024)]
"""(bits, block)"""


@every_float
def quantize_rotated(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x in (*vectors(numel, dtype), ties_and_zeros(numel, dtype)):
        for bits, block in some(ROTATIONS, dtype):
            codes = soiled(padded_numel(numel, block) // 8 * bits, dtype=torch.uint8)
            scales = soiled(num_blocks(numel, block))
            yield call(x, scales, codes, bits=bits, block=block, key=KEY, offset=3 * block)


@float32_only
def dequantize_rotated(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for (bits, block), store in itertools.product(ROTATIONS, STORES):
        padded = padded_numel(numel, block)
        for count in (1, 2, 3):
            codes = [octets(padded, bits, seed) for seed in range(count)]
            scales = [scales_for(numel, block, seed) for seed in range(1, count + 1)]
            how = {"bits": bits, "block": block, "key": KEY, "offset": block, **store}
            yield call(scales, codes, soiled(numel), **how)
