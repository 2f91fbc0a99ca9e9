"""Principal axes of long vectors from few samples, chosen by what they keep of others.

A vector of K values by d axes takes d numbers to send, and 2 d multiplications a value: d to
project it and d to expand the mean. So of several ways to cut the samples into vectors the best is
that with the least

    d / K + d / `_PER_VALUE`                                                                 (1)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_COLUMNS = 1 << 13
"""So many values of each sample are in float64 at a time."""
_PER_VALUE = 2000
"""Multiplications each way in the time that a value takes on a link of 1 Gbit/s, and one core."""
_MOST_ROWS = 1 << 12
"""Samples that axes are made from, and as many that they are chosen by."""


def cheapest_axes(seen: Tensor, held_out: Tensor, energy: float, widths: Sequence[int]) -> Tensor:
    """The `principal_axes` of the rows, cut to one of these widths, that cost least by eq. (1)."""
    best, least = seen.new_empty(0, widths[0]), float("inf")
    for width in widths:
        axes = principal_axes(_cut(seen, width), _cut(held_out, width), energy)
        cost = len(axes) * (1 / width + 1 / _PER_VALUE)
        if len(axes) and cost < least:
            best, least = axes, cost
    return best


def _cut(rows: Tensor, width: int) -> Tensor:
    """Rows of `width` values; of too many some, evenly spread."""
    parts = rows.reshape(-1, width)
    if len(parts) <= _MOST_ROWS:
        return parts
    return parts[torch.arange(_MOST_ROWS) * len(parts) // _MOST_ROWS]


def principal_axes(seen: Tensor, held_out: Tensor, energy: float) -> Tensor:
    """The fewest principal axes of the rows of `seen` that keep `energy` of those `held_out`.

    Rows of the result are orthonormal (d, K); there are none if K/2 axes do not keep enough.
    Another machine may find other bits, so one rank works them out for all.
    """
    few = len(seen) < seen.shape[1]
    return _from_gram(seen, held_out, energy) if few else _from_moments(seen, held_out, energy)


def _from_gram(seen: Tensor, held_out: Tensor, energy: float) -> Tensor:
    """For X = `seen` with X X^T = V diag(l) V^T, the axes are X^T V / sqrt(l): L x L, not K x K."""
    rows = torch.cat((seen, held_out))
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for part in torch.split(rows, _COLUMNS, dim=1):
        part = part.double()
        gram.addmm_(part, part.T)  # bits: rank 0 alone
    num_seen, width = seen.shape
    values, vectors = _leading(gram[:num_seen, :num_seen], width // 2)
    weights = vectors / values.sqrt()  # bits: rank 0 alone
    coefficients = gram[num_seen:, :num_seen] @ weights  # bits: rank 0 alone
    count = _fewest(coefficients, gram.diagonal()[num_seen:], energy)
    axes = [
        (weights[:, :count].T @ part.double()).float()  # bits: rank 0 alone
        for part in torch.split(seen, _COLUMNS, dim=1)
    ]
    return torch.cat(axes, dim=1)


def _from_moments(seen: Tensor, held_out: Tensor, energy: float) -> Tensor:
    """The eigenvectors of X^T X."""
    seen, held_out = seen.double(), held_out.double()
    _, vectors = _leading(seen.T @ seen, seen.shape[1] // 2)  # bits: rank 0 alone
    energies = held_out.square().sum(1)  # bits: rank 0 alone
    count = _fewest(held_out @ vectors, energies, energy)  # bits: rank 0 alone
    return vectors[:, :count].T.float().contiguous()


def _leading(matrix: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues, in order, and their vectors; none that are zero but for rounding."""
    values, vectors = torch.linalg.eigh(matrix)  # bits: rank 0 alone
    values, vectors = values.flip(0), vectors.flip(1)
    rank = min(int((values > 1e-10 * values[0]).count_nonzero()), most)
    return values[:rank], vectors[:, :rank]


def _fewest(coefficients: Tensor, energies: Tensor, energy: float) -> int:
    """How many of the first columns keep `energy` of rows with these energies; 0 if none do."""
    kept = coefficients.square().sum(0).cumsum(0) / energies.sum()  # bits: rank 0 alone
    enough = (kept >= energy).nonzero()
    return int(enough[0]) + 1 if len(enough) else 0
