"""Calls of bases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.values import finite, soiled

BASES = [(0, 2), (1, 3), (13, 4), (8, 1), (20, 0), (19, 130), (33, 7)]
"""(vectors, slices)"""


def bases(numel: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    for rank, count in BASES if numel < 1000 else BASES[2:4]:
        if numel:
            basis = finite(rank * numel, seed=1).view(rank, numel)
            slices = finite(count * numel).view(count, numel)
            yield rank, count, basis, slices.clone()
            for row, bad in zip(slices, itertools.cycle((torch.inf, torch.nan, -torch.inf))):
                row[numel // 2] = bad  # one a slice: which of two NaN a sum is, is not defined
            yield rank, count, basis, slices


@float32_only
def project(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for rank, count, basis, slices in bases(numel):
        mean = finite(count * numel, seed=2).view(count, numel)
        energies = soiled(count, 2, dtype=torch.float64)
        yield call(slices, mean, basis, soiled(rank, count), energies)


@float32_only
def combine(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for rank, count, basis, base in bases(numel):
        coefficients = finite(rank * count, seed=3).view(rank, count)
        yield call(basis, coefficients, base, soiled(count, numel))
