"""Principal axes of long vectors from few samples, chosen by what they keep of others."""

from __future__ import annotations

import torch
from torch import Tensor

_COLUMNS = 1 << 13
"""So many values of each sample are in float64 at a time."""


def principal_axes(seen: Tensor, held_out: Tensor, energy: float) -> Tensor:
    """The fewest principal axes of the rows of `seen` that keep `energy` of those `held_out`.

    Rows of the result are orthonormal (d, K); there are none if K/2 axes do not keep enough. For
    X = `seen` with X X^T = V diag(l) V^T, the axes are X^T V / sqrt(l): L x L instead of K x K.
    Another machine may find other bits, so one rank works them out for all.
    """
    rows = torch.cat((seen, held_out))
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for part in torch.split(rows, _COLUMNS, dim=1):
        part = part.double()
        gram.addmm_(part, part.T)  # bits: rank 0 alone
    num_seen, width = seen.shape
    values, vectors = torch.linalg.eigh(gram[:num_seen, :num_seen])  # bits: rank 0 alone
    values, vectors = values.flip(0), vectors.flip(1)
    rank = min(int((values > 1e-10 * values[0]).count_nonzero()), width // 2)
    weights = vectors[:, :rank] / values[:rank].sqrt()  # bits: rank 0 alone
    coefficients = gram[num_seen:, :num_seen] @ weights  # bits: rank 0 alone
    energies = coefficients.square().sum(0)  # bits: rank 0 alone
    kept = energies.cumsum(0) / gram.diagonal()[num_seen:].sum()  # bits: rank 0 alone
    enough = (kept >= energy).nonzero()
    count = int(enough[0]) + 1 if len(enough) else 0
    axes = [
        (weights[:, :count].T @ part.double()).float()  # bits: rank 0 alone
        for part in torch.split(seen, _COLUMNS, dim=1)
    ]
    return torch.cat(axes, dim=1)
