"""What is reduced: the gradients of parameters, and stretches of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire.adaptive import Layout
from gradwire.codec import Codec
from gradwire.codecs.cast import Identity

_RAW = Identity()
_FEW = 256


class Due:
    """Is what is owed of a part to be delivered? Not if its gradient is zero, which is sent then.

    DDP throws away the mean of a parameter that no worker used, and all that it delivers. Jobs ask
    before they change anything, and the first of them looks. On a GPU the answer stays there.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._lock = threading.Lock()
        self._share: float | Tensor | None = None

    def share(self) -> float | Tensor:
        """1 if it is, else 0."""
        with self._lock:
            if self._share is None:
                self._share = _share_of(self._values)
            return self._share


def _share_of(values: Tensor) -> float | Tensor:
    """Is any value not zero? The first few mostly tell; if not, more and more are looked at."""
    if values.device.type != "cpu":
        return values.any().to(torch.float32)
    start, stop = 0, _FEW
    while start < values.numel():
        if values[start:stop].any():
            return 1.0
        start, stop = stop, 4 * stop
    return 0.0


@dataclass(frozen=True)
class Part:
    """The gradient of one parameter: a flat view, overwritten by the mean.

    tensor: the parameter's number, the same on every rank.
    codec: what encodes it; raw if nothing is said.
    residual: what is owed of it (float32, as long as `values`), if there is error feedback.
    share: how much of the residual is to be delivered: a number, or a scalar on a GPU.
    due: what decides at the last moment whether any of it is.
    layout: for codecs that look at the parameter as more than a flat vector.
    name: for messages to people.
    watch: is told what this worker's messages lose: the place of a slice, what was encoded of it,
        and that less what the message says.
    """

    values: Tensor
    tensor: int
    codec: Codec = _RAW
    residual: Tensor | None = None
    share: float | Tensor = 1.0
    due: Due | None = None
    layout: Layout | None = None
    name: str = ""
    watch: Callable[[int, Tensor, Tensor], None] | None = None

    @property
    def label(self) -> str:
        """What to call it in a message to people."""
        return f"'{self.name}'" if self.name else f"parameter {self.tensor}"

    @property
    def key(self) -> str:
        """What its residual is kept by."""
        return self.name or str(self.tensor)


@dataclass(frozen=True)
class Slice:
    """Values `start` to `stop` of a part."""

    part: Part
    start: int
    stop: int

    @property
    def codec(self) -> Codec:
        """What encodes it."""
        return self.part.codec

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
        """What is owed of it and is to be delivered now, at least in part."""
        residual = self.part.residual
        return residual[self.start : self.stop] if residual is not None and self._is_due else None

    @property
    def undue(self) -> Tensor | None:
        """What is owed of it, if nothing of that is to be delivered now."""
        residual = self.part.residual
        return None if residual is None or self._is_due else residual[self.start : self.stop]

    @property
    def _is_due(self) -> bool:
        """A share that only the GPU knows may be zero, and is multiplied by."""
        return isinstance(self.part.share, Tensor) or self.part.share != 0

    def decided(self) -> Slice:
        """It, with the share that its part is due."""
        due = self.part.due
        if due is None:
            return self
        return replace(self, part=replace(self.part, share=self.part.share * due.share(), due=None))


def whole(parts: Sequence[Part]) -> list[Slice]:
    """Every part, uncut."""
    return [Slice(part, 0, part.values.numel()) for part in parts]


def cut(pieces: Sequence[Slice], count: int) -> list[list[Slice]]:
    """Deal `pieces` to `count` lists of about as many values each.

    A piece is cut only at multiples of its codec's grain, counted in its part, and not at all if
    that is None; lists may then be empty.
    """
    sizes = [(piece.numel, piece.codec.grain) for piece in pieces]
    return [
        [
            Slice(pieces[i].part, pieces[i].start + start, pieces[i].start + stop)
            for i, start, stop in found
        ]
        for found in stretches(sizes, count)
    ]


def stretches(
    sizes: Sequence[tuple[int, int | None]], count: int
) -> list[list[tuple[int, int, int]]]:
    """How `cut` deals vectors of these lengths and grains: which of them, from where, to where.

    >>> stretches([(1000, 512), (3000, 512)], 2)
    [[(0, 0, 1000), (1, 0, 1024)], [(1, 1024, 3000)]]
    """
    total, base = sum(numel for numel, _ in sizes), 0
    lists: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
    for i, (numel, grain) in enumerate(sizes):
        grain = grain or max(numel, 1)
        ideal = [total * place / count - base for place in range(count)]
        cuts = [min(max(round(at / grain) * grain, 0), numel) for at in ideal] + [numel]
        cuts[0] = 0
        for found, start, stop in zip(lists, cuts, cuts[1:], strict=False):
            if stop > start:
                found.append((i, start, stop))
        base += numel
    return lists
