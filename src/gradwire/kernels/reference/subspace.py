"""Coefficients in a basis, and sums of its vectors, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.exact import tree_sum
from gradwire.kernels.formats.layout import TILE

LANES = 16
"""Coefficients of a slice whose energies are added side by side."""


def project(
    slices: Tensor, mean: Tensor, basis: Tensor, coefficients: Tensor, energies: Tensor
) -> None:
    """Write the coefficients of slices - mean in `basis`, and the energies of both.

    `slices` and `mean` are (slices, K), `basis` (d, K) and `coefficients` (d, slices), all float32;
    `energies` (slices, 2), float64, gets the squared norms of slices - mean and of the
    coefficients. As in `combine`, products are added in the order of the K values, each rounded
    once. Squares are added by a halving tree over `TILE` values, these tiles one by one; those of
    the coefficients `LANES` of them side by side, and these by a halving tree.
    """
    centred = slices - mean
    total = torch.zeros(len(slices), len(basis))
    for values, weights in zip(centred.T, basis.T, strict=True):
        total = _fused(values[:, None], weights, total)
    coefficients.copy_(total.T)
    energies.zero_()
    for part in torch.split(centred.double().square(), TILE, dim=1):
        energies[:, 0] += tree_sum(part)
    squares = total.double().square()
    lanes = torch.zeros(len(slices), LANES, dtype=torch.float64)
    for part in torch.split(squares, LANES, dim=1):
        lanes[:, : part.shape[1]] += part
    energies[:, 1] = tree_sum(lanes)


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    """Write base + sum over j of coefficients[j] * basis[j] to `out`, in the order of j.

    `basis` is (d, K), `coefficients` (d, slices), `base` and `out` (slices, K), all float32. A
    matrix product adds in an order that depends on the machine; here the terms are added in this
    order, each rounded once (a fused multiply-add), so that all ranks get the same bits.
    """
    out.copy_(base)
    for vector, weights in zip(basis, coefficients, strict=True):
        out.copy_(_fused(weights[:, None], vector, out))


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
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
