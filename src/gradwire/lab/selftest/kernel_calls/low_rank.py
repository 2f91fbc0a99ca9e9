"""Calls of thin factors of a matrix."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.values import finite, random, soiled


def matrices(numel: int) -> Iterator[tuple[int, Tensor]]:
    """Ranks, and matrices that are wide or tall; one has values that are not finite."""
    for rank, rows, columns in (
        (4, 5, numel),
        (6, 2, numel),
        (1, numel, 3),
        (4, min(numel, 90), 37),
    ):
        x = finite(rows * columns).view(rows, columns)
        yield rank, x
        if rows == 5 and numel > 500:
            spoilt_one = x.clone()
            spoilt_one[1, 3], spoilt_one[4, 5] = torch.inf, torch.nan
            yield rank, spoilt_one


def factor(rank: int, size: int, seed: int) -> Tensor:
    return finite(rank * size, seed=seed).view(rank, size)


@float32_only
def row_products(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for rank, x in matrices(numel):
        for extra in (None, torch.randn(x.shape, generator=random(3))):
            yield call(x, extra, factor(rank, x.shape[1], 4), soiled(rank, x.shape[0]))


@float32_only
def column_products(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for rank, x in matrices(numel):
        for extra in (None, torch.randn(x.shape, generator=random(3))):
            yield call(x, extra, factor(rank, x.shape[0], 4), soiled(rank, x.shape[1]))


@float32_only
def add_outer(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for rank, x in matrices(numel):
        for how in ({}, {"accumulate": True}):
            yield call(factor(rank, x.shape[0], 4), factor(rank, x.shape[1], 5), x, **how)


@float32_only
def settle_outer(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for rank, x in matrices(numel):
        p, (mean, own) = factor(rank, len(x), 4), (factor(rank, x.shape[1], s) for s in (5, 6))
        yield call(x, torch.randn(x.shape, generator=random(3)), p, mean, own)


@float32_only
def orthonormalize(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    """Of any rank, the last row being the sum of others, a row of zeros, and one of inf."""
    for rank in (1, 4, 7):
        rows = torch.randn(rank, numel, generator=random(7))
        yield call(rows)
        yield call(torch.cat((rows, rows[:1] + rows[-1:])))
        yield call(torch.cat((torch.zeros(1, numel), 1e-30 * rows)))
        rows = rows.clone()
        rows[-1, -1:] = torch.inf
        yield call(torch.cat((rows, torch.ones(1, numel))))
        for wanted in (0, 1):
            yield call(rows, torch.tensor([wanted], dtype=torch.int32))
