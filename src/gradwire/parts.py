"""What is reduced: the gradients of parameters, and stretches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire.learning import Layout


@dataclass(frozen=True)
class Part:
    """The gradient of one parameter: a flat view, overwritten by the mean.

    `tensor` is the parameter's number, the same on every rank. `residual`, if there is one, is
    added before encoding and takes up the error made by it (float32, as long as `values`).
    `alone` asks for payloads that need no others to be decoded (`Codec.num_dependent`).
    `layout` is for codecs that look at the parameter as more than a flat vector.
    """

    values: Tensor
    tensor: int
    residual: Tensor | None = None
    alone: bool = False
    layout: Layout | None = None


@dataclass(frozen=True)
class Slice:
    """Values `start` to `stop` of a part."""

    part: Part
    start: int
    stop: int

    @property
    def numel(self) -> int:
        """How many values."""
        return self.stop - self.start

    @property
    def values(self) -> Tensor:
        """The gradient, or after decoding its mean."""
        return self.part.values[self.start : self.stop]

    @property
    def residual(self) -> Tensor | None:
        """The stretch of the residual that belongs here."""
        residual = self.part.residual
        return None if residual is None else residual[self.start : self.stop]


def cut(parts: Sequence[Part], grain: int | None, ranks: int) -> list[list[Slice]]:
    """A shard for each rank: of about the same number of values, cut at multiples of `grain`."""
    total = sum(part.values.numel() for part in parts)
    shards: list[list[Slice]] = [[] for _ in range(ranks)]
    base = 0
    for part in parts:
        numel = part.values.numel()
        unit = grain or max(numel, 1)
        ideal = [total * rank / ranks - base for rank in range(ranks)]
        cuts = [min(max(round(at / unit) * unit, 0), numel) for at in ideal] + [numel]
        cuts[0] = 0
        for shard, start, stop in zip(shards, cuts, cuts[1:], strict=False):
            if stop > start:
                shard.append(Slice(part, start, stop))
        base += numel
    return shards
