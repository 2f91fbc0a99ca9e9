"""How gradients are cut: parameters into buckets, as DDP does, and buckets into chunks, as we do.

Numbers of values only; `reduction/reducer.py` and `collectives/parts.py` do it to tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.collectives.parts import stretches
from gradwire.reduction.policy import MIN_NUMEL
from gradwire.reduction.reducer import chunk_values

FIRST_NBYTES, BUCKET_NBYTES = 1 << 20, 25 << 20
"""DDP's default sizes of the first bucket, which is small to start early, and of all others."""
MOST_BUCKETS, MOST_JOBS = 32, 64
"""Where only the number of parameters is known, more would be lifelike and not more right."""
FORWARD = 1 / 3
"""The share of compute before the backward pass, if nothing better is known: as many products of
matrices as that half as large."""


@dataclass(frozen=True)
class Ready:
    """A bucket, ready `at_s` seconds after the start of a step that only computes.

    `sizes` are those of its parameters in their order, in values.
    """

    at_s: float
    sizes: tuple[int, ...]

    @property
    def coded(self) -> tuple[int, ...]:
        """Those that a codec encodes."""
        return tuple(size for size in self.sizes if size >= MIN_NUMEL)

    @property
    def small(self) -> int:
        """Values of those that travel raw, together."""
        return sum(self.sizes) - sum(self.coded)


@dataclass(frozen=True)
class Chunk:
    """`values` of a job; it stands for `count` jobs of as many values in all."""

    values: float
    count: float = 1.0


def cut(sizes: Sequence[int], grain: int | None, count: int) -> list[list[int]]:
    """Deal parameters of these sizes to `count` lists of about as many values each.

    >>> cut([1000, 3000], 512, 2)
    [[1000, 1024], [1976]]
    """
    dealt = stretches([(size, grain) for size in sizes], count)
    return [[stop - start for _, start, stop in found] for found in dealt]


def chunks(sizes: Sequence[int], grain: int | None, workers: int) -> list[list[int]]:
    """The jobs of a bucket whose coded parameters have these sizes."""
    count = -(-sum(sizes) // chunk_values(workers))
    return [chunk for chunk in cut(sizes, grain, count) if chunk]


def even(params: int, compute_s: float) -> list[Ready]:
    """Buckets of a model of which only the size is known: its layers are alike.

    All are of DDP's size, or larger if there would be more than `MOST_BUCKETS`.
    """
    count = max(1, min(MOST_BUCKETS, round(4 * params / BUCKET_NBYTES)))
    first = min(FIRST_NBYTES // 4, params // (2 * count)) if count > 1 else params
    ends = [first + (params - first) * i // max(count - 1, 1) for i in range(count)]
    if count == 1:
        ends = [params]
    at = [compute_s * (FORWARD + (1 - FORWARD) * end / params) for end in ends]
    return [
        Ready(at_s, (end - start,)) for at_s, start, end in zip(at, [0, *ends], ends, strict=False)
    ]


def coarse(values: int, workers: int, params: int) -> list[Chunk]:
    """The jobs of a bucket of an `even` model: few, each standing for those it is made of."""
    real = -(-values // chunk_values(workers))
    shown = max(1, min(real, MOST_JOBS * values // max(params, 1)))
    return [Chunk(values / shown, real / shown)] * shown
