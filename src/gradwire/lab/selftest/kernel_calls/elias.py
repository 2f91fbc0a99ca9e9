"""Calls of Elias's code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradwire.kernels import cpu
from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.values import random, soiled


def bytes_of_levels(numel: int) -> Iterator[tuple[int, Tensor]]:
    """(levels, codes): from none to all are not zero, and two that are far from each other."""
    for levels, density in itertools.product((1, 2, 7, 127), (0.0, 0.01, 0.3, 1.0, None)):
        codes = torch.randint(0, 2 * levels + 1, (numel,), generator=random(levels))
        keep = torch.rand(numel, generator=random(1)) < (density or 0.0)
        if density is None:
            keep[:1], keep[-1:], codes[:1], codes[-1:] = True, True, 0, 2 * levels
        yield levels, torch.where(keep, codes, levels).to(torch.uint8)


@float32_only
def elias_sizes(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for levels, codes in bytes_of_levels(numel):
        yield call(codes, levels=levels)


def elias_streams(numel: int) -> Iterator[tuple[Tensor, Tensor, dict[str, Any], int]]:
    for levels, codes in bytes_of_levels(numel):
        nonzeros, sparse_bits, dense_bits = cpu.elias_sizes(codes, levels=levels)
        for sparse, size in ((True, sparse_bits), (False, dense_bits)):
            stream = soiled(-(-size // 8), dtype=torch.uint8)
            yield codes, stream, {"levels": levels, "sparse": sparse}, nonzeros


@float32_only
def elias_encode(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for codes, stream, how, _ in elias_streams(numel):
        yield call(codes, stream, **how)


@float32_only
def elias_decode(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for codes, stream, how, nonzeros in elias_streams(numel):
        cpu.elias_encode(codes, stream, **how)
        longer = torch.cat((stream, stream.new_zeros(1)))
        for given in (stream, stream[:-1], longer):
            yield call(given, torch.zeros_like(codes), nonzeros=nonzeros, **how)
