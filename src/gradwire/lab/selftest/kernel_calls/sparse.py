"""Calls of where values are, as gaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels import cpu
from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.values import bitmap_nbytes, bitmaps, soiled


def count_bits(bitmap: Tensor) -> int:
    return int(np.unpackbits(bitmap.numpy()).sum())


@float32_only
def gap_sizes(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for bitmap in bitmaps(numel):
        yield call(bitmap)


def gaps(numel: int) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    for bitmap, rice in itertools.product(bitmaps(numel), (0, 1, 3, 8, 9, 15)):
        low = soiled(packed_nbytes(count_bits(bitmap), rice), dtype=torch.uint8)
        unary = soiled(bitmap_nbytes(cpu.gap_sizes(bitmap)[rice]), dtype=torch.uint8)
        yield bitmap, low, unary, rice


@float32_only
def gap_encode(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for bitmap, low, unary, rice in gaps(numel):
        yield call(bitmap, low, unary, rice=rice)


@float32_only
def gap_decode(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for bitmap, low, unary, rice in gaps(numel):
        cpu.gap_encode(bitmap, low, unary, rice=rice)
        out, count = torch.zeros_like(bitmap), count_bits(bitmap)
        yield call(low, unary, out, rice=rice, count=count, numel=numel)
        yield call(low, unary, out, rice=rice, count=count + 1, numel=numel)
        if count:
            yield call(low, unary, out, rice=rice, count=count, numel=numel - 64)
