"""Parameters that travel raw, gathered over the buckets of a step into one message.

Each is small; sent with its own bucket it would cost a round trip, and there may be many buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.collectives.parts import Part
from gradwire.transport.device import Taken
from gradwire.transport.link import Link


class SmallParts:
    """What waits to be sent, and the future of its mean."""

    def __init__(self) -> None:
        self.done: Future[Any] = Future()
        self._waiting: list[Part] = []
        self._taken: list[Taken] = []

    @property
    def numel(self) -> int:
        """How many values wait."""
        return sum(part.values.numel() for part in self._waiting)

    def add(self, parts: Sequence[Part], taken: Taken) -> None:
        """Let `parts` wait, which are of what was taken."""
        self._waiting += parts
        self._taken.append(taken)

    def job(self) -> Callable[[Link], None]:
        """Replace everything that waits by its mean over the workers."""
        waiting, taken = [part.values for part in self._waiting], self._taken

        def reduce(link: Link) -> None:
            for each in taken:
                each.ready()
            for dtype in dict.fromkeys(values.dtype for values in waiting):
                reduce_joined(link, [v for v in waiting if v.dtype == dtype])

        return reduce


def reduce_raw(link: Link, values: Tensor) -> None:
    """The mean as plain DDP takes it: product, then sum, in the gradient's own type."""
    with link.account.timed("encode"):
        values.mul_(1.0 / link.size)
    link.account.message(values.numel(), values.nbytes)
    link.all_reduce(values)


def reduce_sparse(link: Link, values: Tensor) -> Tensor:
    """The mean of sparse tensors, which is sparse too."""
    values = values.coalesce()
    with link.account.timed("encode"):
        values = values * (1.0 / link.size)
    stored = values._values()
    link.account.message(stored.numel(), stored.nbytes + values._indices().nbytes)
    return link.all_reduce_sparse(values)


def reduce_joined(link: Link, tensors: Sequence[Tensor]) -> None:
    """The mean of several tensors of one type in one message: products, summed by rank.

    Whatever lies beside a value, its mean has the same bits.
    """
    joined = torch.cat(list(tensors))
    with link.account.timed("encode"):
        joined.mul_(1.0 / link.size)
    link.account.message(joined.numel(), joined.nbytes)
    link.sum_by_owners(joined)
    means = torch.split(joined, [values.numel() for values in tensors])
    for values, mean in zip(tensors, means, strict=True):
        values.copy_(mean)
