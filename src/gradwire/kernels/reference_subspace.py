"""Sums of basis vectors in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


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
