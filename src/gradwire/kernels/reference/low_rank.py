"""Products of a large matrix and a few vectors in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels import exact
from gradwire.kernels.exact import tree_sum
from gradwire.kernels.formats.low_rank import FLOOR, GROUP, LANES
from gradwire.kernels.reference.subspace import fused


def row_products(x: Tensor, extra: Tensor | None, q: Tensor, out: Tensor) -> None:
    source, weights = _in_lanes(_source(x, extra)), _in_lanes(q)
    total = torch.zeros(len(q), len(x), LANES)
    for values, weight in zip(source.unbind(1), weights.unbind(1), strict=True):
        total = fused(values, weight[:, None], total)
    out.copy_(tree_sum(total))


def column_products(x: Tensor, extra: Tensor | None, p: Tensor, out: Tensor) -> None:
    out.zero_()
    for values, weights in zip(_source(x, extra), p.T, strict=True):
        out.copy_(fused(weights[:, None], values, out))


def add_outer(p: Tensor, q: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
    total = out.clone() if accumulate else torch.zeros_like(out)
    for ours, theirs in zip(_filled_up(p), _filled_up(q), strict=True):
        total = fused(ours[:, None], theirs, total)
    out.copy_(total)


def settle_outer(x: Tensor, extra: Tensor, p: Tensor, q_mean: Tensor, q_own: Tensor) -> None:
    extra.copy_(x + extra)
    add_outer(0.0 - p, q_own, extra, accumulate=True)
    add_outer(p, q_mean, x)


def orthonormalize(rows: Tensor, wanted: Tensor | None = None) -> None:
    if wanted is not None and not wanted:
        return
    done: list[Tensor] = []
    for row in rows:
        left = row.double()
        whole = _dot(left, left)
        for other in done * 2:
            left = left - _dot(left, other) * other
        square = _dot(left, left)
        if not whole.isfinite():
            left = torch.full_like(left, torch.nan)
        elif square <= whole * FLOOR:
            left = torch.zeros_like(left)
        else:
            left = left / exact.sqrt(square)
        done.append(left)
        row.copy_(left)


def _source(x: Tensor, extra: Tensor | None) -> Tensor:
    return x + (torch.zeros_like(x) if extra is None else extra)


def _in_lanes(matrix: Tensor) -> Tensor:
    """(rows, steps, lanes), filled up with zeros."""
    steps = -(-matrix.shape[1] // LANES)
    filled = torch.nn.functional.pad(matrix, (0, steps * LANES - matrix.shape[1]))
    return filled.view(len(matrix), steps, LANES)


def _filled_up(factors: Tensor) -> Tensor:
    return torch.nn.functional.pad(factors, (0, 0, 0, -len(factors) % GROUP))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    lanes = torch.zeros(LANES, dtype=torch.float64)
    for terms in _in_lanes((a * b)[None])[0]:
        lanes = lanes + terms
    return tree_sum(lanes)
