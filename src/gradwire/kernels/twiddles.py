"""The numbers that Fourier transforms multiply by, the same to the last bit on every machine.

No library's sine is correctly rounded, so none is asked. Roots of unity come from half angles,

    cos(t / 2) = sqrt((1 + cos t) / 2),   sin(t / 2) = sin t / (2 cos(t / 2)),

and from products of those, in float64, with operations that IEEE 754 rounds exactly; the other
seven octants mirror the first. They are wrong by less than 2^-49, and then rounded to float32.
Tables of all sizes up to 65536 take 4 MB; they are made when first asked for, and kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Indices = NDArray[np.int64]


class Tables(NamedTuple):
    """What a transform of `size` = 2 `half` values needs; `reference/transforms.py` says for what.

    `levels` has a row (cos, sin of one, two and three times the angle) for each place of each
    butterfly of four, after the plain ones; `split` is cos and sin of 2 pi k / size for k from 0
    to half / 2, `turns` those of pi k / (2 size), times `scale`, for k below half. All are float32,
    `scale` = 1 / sqrt(2 size) and `ends` = 1 / sqrt(size) as well.
    """

    half: int
    levels: Floats
    split: Floats
    turns: Floats
    scale: float
    ends: float


@lru_cache(32)
def tables(size: int) -> Tables:
    """The tables of a transform of `size` values, a power of two from 2 on."""
    half, scale = size // 2, 1 / np.sqrt(np.float64(2 * size))
    split = np.stack(circle(size), 1)[: half // 2 + 1]
    turns = np.stack(circle(4 * size), 1)[:half] * scale
    ends = 1 / np.sqrt(np.float64(size))
    return Tables(
        half, _levels(half), _rounded(split), _rounded(turns),
        float(np.float32(scale)), float(np.float32(ends)),
    )  # fmt: skip


def circle(count: int) -> tuple[Doubles, Doubles]:
    """cos and sin of 2 pi k / count for k = 0, 1, ..., count - 1; `count` is a power of two."""
    if count < 8:
        cos, sin = circle(8)
        return cos[:: 8 // count], sin[:: 8 // count]
    cos, sin = _octant(count)
    quarter_cos = np.concatenate((cos, sin[-2:0:-1]))  # cos t = sin(pi / 2 - t)
    quarter_sin = np.concatenate((sin, cos[-2:0:-1]))
    half_cos = np.concatenate((quarter_cos, -quarter_sin))
    half_sin = np.concatenate((quarter_sin, quarter_cos))
    return np.concatenate((half_cos, -half_cos)), np.concatenate((half_sin, -half_sin))


def _octant(count: int) -> tuple[Doubles, Doubles]:
    """cos and sin of 2 pi k / count for k from 0 to count / 8, both included."""
    diagonal = np.sqrt(np.float64(0.5))
    cos, sin = np.array([1.0, diagonal]), np.array([0.0, diagonal])
    root_cos, root_sin = diagonal, diagonal
    while 8 * (len(cos) - 1) < count:
        root_cos, below = np.sqrt((1 + root_cos) / 2), root_sin
        root_sin = below / (2 * root_cos)
        between_cos = cos[:-1] * root_cos - sin[:-1] * root_sin
        between_sin = sin[:-1] * root_cos + cos[:-1] * root_sin
        cos, sin = _between(cos, between_cos), _between(sin, between_sin)
    return cos, sin


def _between(values: Doubles, more: Doubles) -> Doubles:
    """`values` with one of `more` after each but the last."""
    out = np.empty(2 * len(values) - 1)
    out[::2], out[1::2] = values, more
    return out


def _levels(half: int) -> Floats:
    """The rows of all levels that multiply, one level after the other."""
    rows = [np.empty((0, 6), np.float32)]
    width = first_level(half)
    while 4 * width <= half:
        cos, sin = circle(4 * width)
        times = np.arange(width)[:, None] * (1, 2, 3)
        rows.append(_rounded(np.stack((cos[times], sin[times]), 2).reshape(width, 6)))
        width *= 4
    return np.concatenate(rows)


def first_level(half: int) -> int:
    """How many values the plain butterflies, of two or of four, have put together.

    >>> [first_level(half) for half in (1, 2, 4, 8, 128)]
    [1, 2, 4, 2, 2]
    """
    return 1 if half == 1 else 2 if half.bit_length() % 2 == 0 else 4


def reversed_bits(half: int) -> Indices:
    """Where each of `half` values goes before the first level."""
    places = np.zeros(1, np.int64)
    while len(places) < half:
        places = np.concatenate((2 * places, 2 * places + 1))
    return places


def pieces(numel: int, block: int) -> list[tuple[int, int, int]]:
    """(first value, last, size): the whole blocks, and the rest in falling powers of two.

    >>> pieces(1000, 256)
    [(0, 768, 256), (768, 896, 128), (896, 960, 64), (960, 992, 32), (992, 1000, 8)]
    """
    whole = numel // block * block
    cuts = [(0, whole, block)] if whole else []
    start = whole
    while start < numel:
        size = 1 << ((numel - start).bit_length() - 1)
        cuts.append((start, start + size, size))
        start += size
    return cuts


def _rounded(values: Any) -> Floats:
    return np.ascontiguousarray(values, np.float32)
