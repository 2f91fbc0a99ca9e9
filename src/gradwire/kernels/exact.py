"""Mathematics that gives the same bits on every processor.

IEEE 754 defines + - * / and the square root to the last bit. Everything else is as a library has
it: torch takes roots, exponentials and sines from one that knows many processors and rounds
otherwise on each; its sums and products of matrices add in an order that depends on the width of a
register. So whatever a message, a mean or a decision depends on is computed with what is here, with
elementwise + - * /, and with integers.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_PI = 3.141592653589793
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""The first 32 bits of ln 2, so that a small multiple is exact, and the rest."""


def sqrt(x: Tensor) -> Tensor:
    """The square root, rounded to nearest; NumPy leaves it to the processor.

    On a GPU that of float32 is taken in float64: no root of 24 bits is so close to the middle of
    two float32 that its last bits there could matter.
    """
    if x.device.type != "cpu":
        assert x.dtype == torch.float32, "float64 roots are for the CPU"
        return x.double().sqrt().float()  # bits: see above
    out = torch.empty_like(x)
    np.sqrt(x.numpy(), out=out.numpy())
    return out


def divide(x: Tensor, by: float, out: Tensor | None = None) -> Tensor:
    """x / by, rounded to nearest. On a GPU torch would multiply by 1 / by, if that is a number."""
    return torch.div(x, x.new_full((), by), out=out)


def tree_sum(values: Tensor) -> Tensor:
    """Sum over the last dimension: pad with zeros to a power of two, then add halves."""
    size = 1 << max(values.shape[-1] - 1, 0).bit_length()
    values = torch.nn.functional.pad(values, (0, size - values.shape[-1]))
    while size > 1:
        size //= 2
        values = values[..., :size] + values[..., size:]
    return values[..., 0]


def sin_half_turns(x: Tensor) -> Tensor:
    """sin(pi x) of float64 values from -1/2 to 1/2, by its series; right to 2e-16."""
    angle = _PI * x
    square = angle * angle
    series = torch.ones_like(angle)
    for k in range(24, 0, -2):
        series = 1.0 - series * square / (k * (k + 1))
    return angle * series


def cos_turns(x: Tensor) -> Tensor:
    """cos(2 pi x) of float64 values, right to 1e-15."""
    sine = sin_half_turns(x - x.round())
    return 1.0 - 2.0 * (sine * sine)


def exp(x: float) -> float:
    """e^x for |x| below 700, right to 4e-16 of it."""
    octaves = round(x / _LN2_HIGH)
    rest = (x - octaves * _LN2_HIGH) - octaves * _LN2_LOW
    series = 1.0
    for k in range(16, 0, -1):
        series = 1.0 + series * rest / k
    return math.ldexp(series, octaves)


def exp2(x: int, parts: int) -> float:
    """2^(x / parts), rounded down; `parts` is a power of two.

    >>> exp2(-3, 2) ** 2, exp2(512, 256)
    (0.12499999999999997, 4.0)
    """
    octaves, part = divmod(x, parts)
    mantissa = 1 << 52 * parts + part
    for _ in range(parts.bit_length() - 1):
        mantissa = math.isqrt(mantissa)
    return math.ldexp(mantissa, octaves - 52)


def is_finite(values: Tensor) -> bool:
    """Is every value? The extremes say so, NaN among them, and take no memory to find."""
    return values.numel() == 0 or all(bool(end.isfinite()) for end in torch.aminmax(values))
