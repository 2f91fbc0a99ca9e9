"""Coefficients in a basis, and sums of its vectors.

A matrix product adds in an order that depends on the machine. Here the terms are added in their
order, each rounded once (a fused multiply-add), so that all ranks get the same bits. The sign of a
NaN that comes of two NaN is not defined.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Subspace(Protocol):
    """Matrix products that are defined to the last bit."""

    def project(
        self, slices: Tensor, mean: Tensor, basis: Tensor, coefficients: Tensor, energies: Tensor
    ) -> None:
        """Write the coefficients of slices - mean in `basis`, and the energies of both.

        `slices` and `mean` are (slices, K), `basis` (d, K) and `coefficients` (d, slices), all
        float32; `energies` (slices, 2), float64, gets the squared norms of slices - mean and of the
        coefficients. Products are added in the order of the K values. Squares are added in 16 lanes
        side by side, and the lanes by a halving tree.
        """

    def combine(self, basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
        """Write base + sum over j of coefficients[j] * basis[j] to `out`, in the order of j.

        `basis` is (d, K), `coefficients` (d, slices), `base` and `out` (slices, K), all float32;
        `out` may be `base`.
        """
