"""Coefficients in a basis, and sums of its vectors, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.exact import tree_sum

LANES = 16
"""Values of a slice whose energies are added side by side."""


def project(
    slices: Tensor, mean: Tensor, basis: Tensor, coefficients: Tensor, energies: Tensor
) -> None:
    centred = slices - mean
    total = torch.zeros(len(slices), len(basis))
    for values, weights in zip(centred.T, basis.T, strict=True):
        total = fused(values[:, None], weights, total)
    coefficients.copy_(total.T)
    energies[:, 0], energies[:, 1] = _energies(centred), _energies(total)


def _energies(rows: Tensor) -> Tensor:
    lanes = torch.zeros(len(rows), LANES, dtype=torch.float64)
    for part in torch.split(rows.double().square(), LANES, dim=1):
        lanes[:, : part.shape[1]] += part
    return tree_sum(lanes)


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    out.copy_(base)
    for vector, weights in zip(basis, coefficients, strict=True):
        out.copy_(fused(weights[:, None], vector, out))


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c rounded once to float32.

    In float64 the product is exact. So that the sum may be rounded twice, it is first rounded to
    odd: where it is not exact, to that one of its two neighbours whose last bit is set.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    is_even = total.view(torch.int64) % 2 == 0
    towards = torch.where(error > 0, torch.inf, -torch.inf).double()
    mend = (error != 0) & error.isfinite() & is_even
    return torch.where(mend, torch.nextafter(total, towards), total).float()
