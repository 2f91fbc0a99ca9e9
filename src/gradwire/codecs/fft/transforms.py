"""Orthonormal transforms of vectors: the coefficients of n values are n values of equal energy.

    time   c = x
    fft    the real and imaginary parts of the spectrum of each block
    dct    the cosine transform of each block

See `kernels/protocol/transforms.py`. Each is a rotation (Parseval): what is dropped of c is lost
of x, to the last joule. The same values have the same coefficients on every processor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire import kernels

DOMAINS = ("time", "fft", "dct")


def forward(domain: str, x: Tensor, out: Tensor, block: int) -> None:
    """Write the coefficients of `x`, of any float type, to `out` (float32, may be `x`)."""
    if domain == "time":
        out.copy_(x)
        return
    source = x if x.dtype == torch.float32 and x.is_contiguous() else out.copy_(x)
    kernels.for_device(x.device).transform(source, out, domain=domain, block=block)


def inverse(
    domain: str,
    coefficients: Tensor,
    out: Tensor,
    block: int,
    *,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Write (or add) `weight` times the values with these `coefficients` to `out` (float32).

    `out` may be `coefficients`.
    """
    if domain != "time":
        kernels.for_device(out.device).transform_back(
            coefficients, out, domain=domain, block=block, weight=weight, accumulate=accumulate
        )
    elif accumulate:
        out += coefficients * weight
    else:
        torch.mul(coefficients, weight, out=out)
