"""Error feedback around one exchange.

A worker encodes its gradient plus what it owes of it, and what its message does not say of that is
written to scratch memory in the same pass where the codec can. When the mean has come, and is
finite, that is owed from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from gradwire.collectives.parts import Slice
from gradwire.kernels.exact import is_finite
from gradwire.kernels.formats.debt import Debt
from gradwire.key import Key
from gradwire.transport.link import Link

T = TypeVar("T")


@dataclass(frozen=True)
class Own:
    """This worker's vector of a piece: its gradient, and with error feedback a debt.

    for_all: does it owe what the mean of all does not say, so that something new may be owed even
        if nothing is due?
    """

    piece: Slice
    debt: Debt | None = None
    for_all: bool = False

    def source(self) -> Tensor:
        """What is to be encoded, in the memory of the debt if there is one."""
        values = self.piece.values
        return values if self.debt is None else self.debt.source(values)

    def encode(self, out: Tensor, key: Key) -> int:
        """Write its payload, and what is owed then; the size in bytes."""
        piece, codec = self.piece, self.piece.codec
        told = self.watched(self.source()) if piece.part.watch is not None else None
        if self.debt is None:
            size = codec.encode_into(piece.values, out, key, piece.start)
        else:
            size = codec.encode_owing_into(piece.values, self.debt, out, key, piece.start)
        tell(piece, told, partial(codec.subtract, out[:size], key=key, offset=piece.start))
        return size

    def watched(self, source: Tensor) -> Tensor | None:
        """A copy of what is to be encoded, if anybody watches."""
        return None if self.piece.part.watch is None else source.clone()

    def settle(self, link: Link, decode: Callable[[Tensor], T]) -> T:
        """Store the mean that `decode` writes, and owe what is new; what `decode` returns.

        Where the mean is not finite the residual stays as it was. Every rank sees the same mean, so
        all decide alike, on a GPU without telling the host.
        """
        values = self.piece.values
        direct = values.dtype == torch.float32
        result = values if direct else link.floats("target", self.piece.numel)
        decoded = decode(result)
        if not direct:
            values.copy_(result)  # float16 may not hold it
        if self.piece.residual is not None:
            self.owe(all_finite(values))
        return decoded

    def owe(self, is_new: bool | Tensor) -> None:
        """What was not said, and what was not due, is the residual from now on, if it `is_new`.

        If nothing is due it stays as it was: zeros may be decoded to something else.
        """
        if self.debt is None or self.debt.residual is None:
            return
        owed, residual, share = self.debt.owed, self.debt.residual, self.piece.part.share
        if isinstance(is_new, Tensor):
            if isinstance(share, Tensor) and not self.for_all:
                is_new = is_new & (share != 0)
            torch.where(is_new, owed, residual, out=residual)
        elif is_new:
            residual.copy_(owed)


def vectors_of(link: Link, pieces: Sequence[Slice]) -> list[Own]:
    """This worker's vectors; what will be owed of them is kept in scratch memory of `link`."""
    numels = [piece.numel for piece in pieces if piece.residual is not None]
    rooms = iter(torch.split(link.floats("owed", sum(numels)), numels))
    return [Own(p) if p.residual is None else Own(p, debt_of(p, next(rooms))) for p in pieces]


def debt_of(piece: Slice, room: Tensor) -> Debt:
    """What is owed of a piece, and `room` for what will be."""
    share = piece.part.share
    if piece.residual is None:
        return Debt(room)
    if isinstance(share, Tensor):
        return Debt(room, piece.residual, torch.stack((share, 1.0 - share)))
    if share == 1:
        return Debt(room, piece.residual)
    return Debt(room, piece.residual, room.new_tensor([share, 1.0 - share]))


def all_finite(values: Tensor) -> bool | Tensor:
    """Is every value? On a GPU the answer stays there."""
    if values.device.type == "cpu":
        return is_finite(values)
    lowest, highest = torch.aminmax(values)
    return lowest.isfinite() & highest.isfinite()


def tell(piece: Slice, source: Tensor | None, subtract: Callable[[Tensor], object]) -> None:
    """Tell who watches, if anybody does, what is lost of `source`.

    `subtract` takes what this worker's own message says off a vector that holds it.
    """
    if piece.part.watch is not None and source is not None:
        subtract(lost := source.to(torch.float32, copy=True))
        piece.part.watch(piece.start, source, lost)
