"""What is noted of a step: when its buckets were ready, when it was over, samples of gradients."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.collectives.parts import Part

SAMPLE, LEAST_SAMPLE, STRETCH = 1 << 20, 1 << 14, 1 << 13
"""Values that samples of all layers have together, and each at least; how long their pieces are."""


@dataclass
class Notes:
    """The clock of one step.

    began: when its first bucket was ready.
    ready: seconds of a core from then on until each bucket was, in the thread that computes. By the
        clock it would be longer where lanes and other workers share the cores.
    buckets: numbers and sizes of the parameters of each.
    ended, resumed: when all means were there, and when the work that was done beside was over too.
    """

    began: float = 0.0
    ready: list[float] = field(default_factory=list)
    buckets: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    ended: float = 0.0
    resumed: float = 0.0
    _first: float = 0.0
    _own: float = 0.0

    def see(self, parts: Sequence[Part], samples: Samples | None) -> None:
        """A bucket is ready."""
        now = time.thread_time()
        if not self.buckets:
            self.began, self._first = time.perf_counter(), now
        self.ready.append(max(now - self._first - self._own, 0.0))
        self.buckets.append(tuple((part.tensor, part.values.numel()) for part in parts))
        if samples is not None:
            for part in parts:
                samples.take(part)
        self._own += time.thread_time() - now

    def end(self) -> None:
        """All means are there."""
        self.ended = self.resumed = time.perf_counter()

    def resume(self) -> None:
        """So is what was done beside."""
        self.resumed = time.perf_counter()

    @property
    def span_s(self) -> float:
        """From the first bucket to the last mean."""
        return self.ended - self.began


class Samples:
    """Of the gradients of each layer, before they are exchanged; and the energy of all others."""

    def __init__(self, layers: Mapping[int, int]) -> None:
        total = max(sum(layers.values()), 1)
        self._layers = layers
        self._quota = {i: max(LEAST_SAMPLE, SAMPLE * n // total) for i, n in layers.items()}
        self.values: dict[int, Tensor] = {}
        self.rest: dict[int, float] = {}

    def take(self, part: Part) -> None:
        """Copy some values of a layer; of other parameters, only their energy counts."""
        numel = part.values.numel()
        if part.tensor in self._layers:
            places = stretches(numel, self._quota[part.tensor])
            pieces = [part.values[start:stop].float() for start, stop in places]
            self.values[part.tensor] = torch.cat(pieces)
        elif numel:
            places = stretches(numel, LEAST_SAMPLE)
            found = sum(energy(part.values[start:stop]) for start, stop in places)
            self.rest[part.tensor] = found * numel / sum(stop - start for start, stop in places)


def stretches(numel: int, quota: int) -> list[tuple[int, int]]:
    """About `quota` of `numel` values, in pieces from all over.

    >>> stretches(100_000, 20_000)
    [(0, 8192), (91648, 99840)]
    """
    if numel <= quota:
        return [(0, numel)]
    count = max(1, quota // STRETCH)
    starts = [(numel - STRETCH) * i // max(count - 1, 1) // 512 * 512 for i in range(count)]
    return [(start, start + STRETCH) for start in starts]


def energy(values: Tensor) -> float:
    """The squared norm."""
    return float(values.double().square().sum())
