"""The chance that a value is wrong, where the distance of two workers is seen modulo a cell.

With one plain worker and one nested, w = alpha z + e of the codec's eq. (3) is seen modulo `ratio`
steps of the nested worker, so that wrong values look like right ones. In units of those steps

    w = n + e + f,    e uniform of width 1,   f uniform of width alpha D / D1                (1)

where n is what the workers really differ by, e the nested worker's error and f that of the plain
one, whose step is D. Folding does not change the mean of cos(2 pi w / ratio). It is the product of
the characteristic functions of n, e and f at t = 2 pi / ratio; those of e and f are known.

The law of n is not. It is taken to be Student's t with three degrees of freedom and a scale s,

    E cos(t n) = (1 + x) e^-x,   x = sqrt(3) s t                                             (2)

which has heavier tails than the differences of gradients mostly have. A chance that is too high
sends plain codes for nothing; one that is too low spoils the mean. s is fitted to every tile, or to
every block that is longer. How far this is from the truth is measured in docs/codecs/dithered.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.kernels.exact import cos_turns, exp, sin_half_turns, tree_sum
from gradwire.kernels.formats.layout import TILE

_NODES = 128
"""Of the integral over the law of n."""
_GRID, _TOP = 256, 12
"""x of eq. (2) is found to 1 / 256, rounded up, and is below 12."""
_LEAST_KNOWN = 0.1
"""Where errors alone make the cosine smaller than this, nothing is seen of n."""
_LEAST_WIDTH = 1e-3


def chances(
    turns: Tensor, steps: Tensor, errors: Tensor, ratio: int, block: int
) -> tuple[list[float], list[int]]:
    """For each block, the chance of a value to be wrong and how many values it is about.

    turns: w in cells, folded, float64. steps, errors: D1, and the width of f, of each block.
    """
    used = turns.isfinite() & steps.gt(0).repeat_interleave(block)[: len(turns)]
    size = block * max(1, TILE // block)
    rows = -(-len(turns) // size)
    cosines = _padded(torch.where(used, cos_turns(turns), 0.0), rows * size)
    counts = _padded(used, rows * size).view(-1, block).count_nonzero(1)[: len(steps)]
    errors = torch.where(counts > 0, errors, 0.0)
    known = _padded(counts * _sinc(1 / ratio) * _sinc(errors / ratio), rows * (size // block))
    number = _padded(counts, rows * (size // block)).view(rows, -1)
    clear = tree_sum(known.view(rows, -1)) >= _LEAST_KNOWN * tree_sum(number)
    cosine = tree_sum(cosines.view(rows, -1)) / tree_sum(known.view(rows, -1))
    scales = _student_scales(torch.where(clear, cosine, 0.0), ratio)
    each = scales.repeat_interleave(size // block)[: len(steps)]
    return _beyond(each, errors, ratio).tolist(), counts.tolist()


def _padded(values: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, size - len(values)))


def _sinc(x: Tensor | float) -> Tensor:
    """sin(pi x) / (pi x) up to 1, and 0 from there on."""
    x = torch.as_tensor(x, dtype=torch.float64).clamp(1e-9, 1.0)
    return sin_half_turns(torch.minimum(x, 1.0 - x)) / (math.pi * x)


def _student_scales(cosines: Tensor, ratio: int) -> Tensor:
    """s of eq. (2)."""
    x = torch.bucketize(-cosines, _negative_cosines()).double() / _GRID
    return x * ratio / (2 * math.pi * math.sqrt(3))


@lru_cache(1)
def _negative_cosines() -> Tensor:
    """The right of eq. (2), negative, at x = 0, 1 / 256, ..."""
    x = [i / _GRID for i in range(_TOP * _GRID)]
    return torch.tensor([-(1 + each) * exp(-each) for each in x], dtype=torch.float64)


def _beyond(scales: Tensor, widths: Tensor, ratio: int) -> Tensor:
    """P(|n + e + f| > ratio / 2)."""
    magnitudes, weights = _student()
    n = scales[:, None] * magnitudes
    f = widths.clamp_min(_LEAST_WIDTH)[:, None]
    chance = _above(n - ratio / 2, f) + _above(-n - ratio / 2, f)
    return tree_sum(weights * chance)


def _above(n: Tensor, f: Tensor) -> Tensor:
    """P(n + e + f > 0): the integral of the integral of a ramp."""
    far, near = (1 + f) / 2, (1 - f) / 2
    corners = [(n + at).clamp_min(0.0).square() for at in (far, near, -near, -far)]
    return (corners[0] - corners[1] - corners[2] + corners[3]) / (2 * f)


@lru_cache(1)
def _student() -> tuple[Tensor, Tensor]:
    """Magnitudes of Student's t with three degrees of freedom, and their weights.

    sqrt(3) v / (1 - v) is any magnitude, v from 0 to 1; the middles of equal parts are taken.
    """
    v = (torch.arange(_NODES, dtype=torch.float64) + 0.5) / _NODES
    rest = 1 - v
    density = 4 / math.pi * (rest / (rest * rest + v * v)).square()
    return math.sqrt(3) * v / rest, density / _NODES
