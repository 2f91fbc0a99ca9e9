"""What a slice gives to be encoded, and what becomes of it when its mean has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.codec import is_finite
from gradwire.collectives.parts import Slice
from gradwire.transport.link import Link


def take(link: Link, pieces: Sequence[Slice]) -> list[Tensor]:
    """What is to be encoded, timed."""
    with link.account.timed("encode"):
        return sources(link, pieces)


def sources(link: Link, pieces: Sequence[Slice]) -> list[Tensor]:
    """What is to be encoded: each gradient, with its residual if there is one.

    They stay as they are until `settle`, in the gradients or in scratch memory of `link`.
    """
    fed = [piece for piece in pieces if piece.residual is not None]
    sums = iter(
        torch.split(link.floats("source", sum(p.numel for p in fed)), [p.numel for p in fed])
    )
    found = []
    for piece in pieces:
        if piece.residual is None:
            found.append(piece.values if piece.part.watch is None else piece.values.clone())
        else:
            found.append(torch.add(piece.residual, piece.values, out=next(sums)))
    return found


def target(link: Link, piece: Slice) -> Tensor:
    """Where the mean is decoded to, as float32."""
    if piece.values.dtype == torch.float32:
        return piece.values
    return link.floats("target", piece.numel)


def settle(
    piece: Slice, source: Tensor, result: Tensor, subtract: Callable[[Tensor], None]
) -> None:
    """Store the mean; the source, less what `subtract` takes off it, becomes the residual.

    What is taken off is what this worker's own message says. Where the mean is not finite the
    residual stays as it was. Every rank sees the same mean, so all decide alike.
    """
    if piece.part.watch is not None:
        subtract(lost := source.to(torch.float32, copy=True))
        piece.part.watch(piece.start, source, lost)
    if result.data_ptr() != piece.values.data_ptr():
        piece.values.copy_(result)  # float16 may not hold it
    if piece.residual is not None and is_finite(piece.values):
        subtract(piece.residual.copy_(source))
