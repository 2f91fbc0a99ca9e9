"""A codec for each layer, by a dynamic program: least cost within a budget of errors.

Errors are counted in whole units of the budget, rounded up, so what is chosen never exceeds it.
With U units, f_i(u) is the least cost of the first i layers within u of them::

    f_0(u) = 0,    f_i(u) = min over options j of  f_{i-1}(u - units_ij) + cost_ij
"""  # fmt: skip

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

import numpy as np

_LEAST_UNITS, _UNITS_A_LAYER = 1024, 32


def solve(
    costs: Sequence[Sequence[float]], errors: Sequence[Sequence[float]], budget: float
) -> list[int]:
    """The option of each layer. The first one must have no error, so that there is a solution."""
    units = max(_LEAST_UNITS, _UNITS_A_LAYER * len(costs))
    best, choices = np.zeros(units + 1), []
    sizes = [[_units(error, budget, units) for error in row] for row in errors]
    for row, taken in zip(costs, sizes, strict=True):
        tried = np.full((len(row), units + 1), np.inf)
        for option, (cost, size) in enumerate(zip(row, taken, strict=True)):
            if size <= units:
                tried[option, size:] = best[: units + 1 - size] + cost
        choices.append(tried.argmin(0))
        best = tried.min(0)
    left, chosen = units, []
    for choice, taken in zip(reversed(choices), reversed(sizes), strict=True):
        chosen.append(int(choice[left]))
        left -= taken[chosen[-1]]
    return chosen[::-1]


def _units(error: float, budget: float, units: int) -> int:
    """What an error takes of the budget; more than all of it if it is not allowed."""
    if error <= 0:
        return 0
    share = error / budget if budget > 0 else float("inf")
    return ceil(share * units) if isfinite(share) and share <= 1 else units + 1
