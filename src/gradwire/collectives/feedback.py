"""Error feedback around one exchange.

A worker encodes its gradient plus what it owes of it. When the mean has come, what its own message
did not say is owed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from gradwire.collectives.parts import Slice
from gradwire.kernels.exact import is_finite
from gradwire.transport.link import Link

T = TypeVar("T")


def sources(link: Link, pieces: Sequence[Slice]) -> list[Tensor]:
    """What is to be encoded: each gradient, with the share of its residual that is due.

    They stay as they are until `settle`, in the gradients or in scratch memory of `link`.
    """
    fed = [piece.numel for piece in pieces if piece.residual is not None]
    sums = iter(torch.split(link.floats("source", sum(fed)), fed))
    found = []
    with link.account.timed("encode"):
        for piece in pieces:
            if piece.residual is None:
                found.append(piece.values if piece.part.watch is None else piece.values.clone())
            elif not isinstance(piece.part.share, Tensor) and piece.part.share == 1:
                found.append(torch.add(piece.residual, piece.values, out=next(sums)))
            else:
                due = torch.mul(piece.residual, piece.part.share, out=next(sums))
                found.append(due.add_(piece.values))
    return found


def settle(
    link: Link,
    piece: Slice,
    source: Tensor,
    decode: Callable[[Tensor], T],
    subtract: Callable[[Tensor], None],
) -> T:
    """Store the mean that `decode` writes, and update the residual; what `decode` returns.

    `subtract` takes what this worker's own message says off a vector that holds the source. Where
    the mean is not finite the residual stays as it was. Every rank sees the same mean, so all
    decide alike, on a GPU without telling the host.
    """
    direct = piece.values.dtype == torch.float32
    result = piece.values if direct else link.floats("target", piece.numel)
    decoded = decode(result)
    tell(piece, source, subtract)
    if not direct:
        piece.values.copy_(result)  # float16 may not hold it
    if piece.residual is not None:
        owe(link, piece, source, subtract, all_finite(piece.values))
    return decoded


def all_finite(values: Tensor) -> bool | Tensor:
    """Is every value? On a GPU the answer stays there."""
    if values.device.type == "cpu":
        return is_finite(values)
    lowest, highest = torch.aminmax(values)
    return lowest.isfinite() & highest.isfinite()


def tell(piece: Slice, source: Tensor, subtract: Callable[[Tensor], None]) -> None:
    """Tell who watches, if anybody does, what was lost."""
    if piece.part.watch is not None:
        subtract(lost := source.to(torch.float32, copy=True))
        piece.part.watch(piece.start, source, lost)


def owe(
    link: Link,
    piece: Slice,
    source: Tensor,
    subtract: Callable[[Tensor], None],
    is_new: bool | Tensor,
) -> None:
    """What the message did not say, and what was not due, is the new residual if it `is_new`."""
    residual, share = piece.residual, piece.part.share
    if residual is None or is_new is False:
        return
    kept = residual * (1.0 - share) if isinstance(share, Tensor) or share < 1 else None
    fresh = link.floats("owed", piece.numel) if isinstance(is_new, Tensor) else residual
    subtract(fresh.copy_(source))
    if kept is not None:
        fresh.add_(kept)
    if isinstance(is_new, Tensor):
        torch.where(is_new, fresh, residual, out=residual)
