"""What is reduced: the gradients of parameters, and stretches of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire.adaptive import Layout


@dataclass(frozen=True)
class Part:
    """The gradient of one parameter: a flat view, overwritten by the mean.

    `tensor` is the parameter's number, the same on every rank. `residual`, if there is one, is
    added before encoding and takes up the error made by it (float32, as long as `values`).
    `alone` asks for payloads that need no others to be decoded (`Codec.num_dependent`).
    `layout` is for codecs that look at the parameter as more than a flat vector, and `name` for
    messages to people. `watch`, if there is one, is told what this worker's messages lose: the
    place of a slice, what was encoded of it, and that less what the message says.
    """

    values: Tensor
    tensor: int
    residual: Tensor | None = None
    alone: bool = False
    layout: Layout | None = None
    name: str = ""
    watch: Callable[[int, Tensor, Tensor], None] | None = None

    @property
    def label(self) -> str:
        """What to call it in a message."""
        return f"'{self.name}'" if self.name else f"parameter {self.tensor}"


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

    @property
    def is_followed(self) -> bool:
        """Must what was encoded, and what was sent of it, be kept until the mean has come?"""
        return self.part.residual is not None or self.part.watch is not None


def whole(parts: Sequence[Part]) -> list[Slice]:
    """Every part, uncut."""
    return [Slice(part, 0, part.values.numel()) for part in parts]


def cut(pieces: Sequence[Slice], grain: int | None, count: int) -> list[list[Slice]]:
    """Deal `pieces` to `count` lists of about as many values each.

    A piece is cut only at multiples of `grain` values of its part, and not at all if that is
    None; lists may then be empty.
    """
    total = sum(piece.numel for piece in pieces)
    lists: list[list[Slice]] = [[] for _ in range(count)]
    base = 0
    for piece in pieces:
        unit = grain or max(piece.numel, 1)
        ideal = [total * i / count - base for i in range(count)]
        cuts = [min(max(round(at / unit) * unit, 0), piece.numel) for at in ideal] + [piece.numel]
        cuts[0] = 0
        for found, start, stop in zip(lists, cuts, cuts[1:], strict=False):
            if stop > start:
                found.append(Slice(piece.part, piece.start + start, piece.start + stop))
        base += piece.numel
    return lists
