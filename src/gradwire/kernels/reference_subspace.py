"""Sums of basis vectors in plain torch."""

from __future__ import annotations

from torch import Tensor


def combine(basis: Tensor, coefficients: Tensor, base: Tensor, out: Tensor) -> None:
    """Write base + sum over j of coefficients[j] * basis[j] to `out`, in the order of j.

    `basis` is (d, K), `coefficients` (d, slices), `base` and `out` (slices, K), all float32. A
    matrix product adds in an order that depends on the machine; here each product and each sum
    is rounded on its own and in this order, so that all ranks get the same bits.
    """
    out.copy_(base)
    for vector, weights in zip(basis, coefficients, strict=True):
        out.add_(weights[:, None] * vector)
