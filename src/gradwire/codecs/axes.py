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
    """
    rows = torch.cat((seen, held_out))
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for part in torch.split(rows, _COLUMNS, dim=1):
        part = part.double()
        gram.addmm_(part, part.T)
    num_seen, width = seen.shape
    values, vectors = torch.linalg.eigh(gram[:num_seen, :num_seen])
    values, vectors = values.flip(0), vectors.flip(1)
    rank = min(int((values > 1e-10 * values[0]).sum()), width // 2)
    weights = vectors[:, :rank] / values[:rank].sqrt()
    coefficients = gram[num_seen:, :num_seen] @ weights
    kept = coefficients.square().sum(0).cumsum(0) / gram.diagonal()[num_seen:].sum()
    enough = (kept >= energy).nonzero()
    count = int(enough[0]) + 1 if len(enough) else 0
    parts = torch.split(seen, _COLUMNS, dim=1)
    return torch.cat([(weights[:, :count].T @ part.double()).float() for part in parts], dim=1)
