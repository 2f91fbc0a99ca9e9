"""By how much values are raised, so that what is clipped of them does not bias: eq. (3)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gradwire.kernels.exact import exp

_STEPS = 256
_ROOT_OF_TWO_PI = 2.5066282746310002
_SURE = 7.0
"""Beyond so many standard deviations there is no value in 10^11."""


def within(s: float) -> tuple[float, float]:
    """The share of a Gaussian within `s` standard deviations, and its density there.

    >>> within(1.0)
    (0.682689492137086, 0.24197072451914337)
    """
    density = exp(-s * s / 2) / _ROOT_OF_TWO_PI
    term = series = s
    k = 3
    while term > 1e-17 * series:
        term *= s * s / k
        series, k = series + term, k + 2
    return 2 * density * series, density


def gain(reach: float) -> float:
    """The f of eq. (3) for a grid that ends at `reach` standard deviations, above sqrt(pi / 2).

    >>> gain(2.0), gain(9.0)
    (1.0639979797798347, 1.0)
    """
    s = min(reach, _SURE)
    if s < reach:
        return 1.0
    for _ in range(40):  # Newton's method, from above: the root is not passed
        share, density = within(s)
        s -= (s - reach * share) / (1 - 2 * reach * density)
    return reach / s


@lru_cache
def table(reach: float) -> Tensor:
    """`gain` of a block that has 1/256, 2/256, ... of the deviation that the grid is made for.

    The first is that of nothing. What lies between two is taken from the line between them.
    """
    shares = [i / _STEPS for i in range(1, _STEPS + 1)]
    gains = [1.0, *(gain(reach / share) for share in shares)]
    return torch.tensor([*gains, gains[-1]], dtype=torch.float32)


def gains(own: Tensor, agreed: Tensor, reach: float) -> Tensor:
    """Those of blocks with a deviation of `own` on a grid for `agreed`; 1 if one is NaN.

    A GPU gets the table each time, on the stream that it works on: a copy so small waits for
    nothing.
    """
    place = (own / agreed).nan_to_num(0.0).clamp(0, 1) * _STEPS
    below = place.floor()
    values, index = table(reach), below.long()
    if own.device != values.device:
        values = own.new_empty(values.shape).copy_(values, non_blocking=True)
    low, high = values[index], values[index + 1]
    return low + (high - low) * (place - below)
