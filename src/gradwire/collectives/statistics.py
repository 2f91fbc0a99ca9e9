"""What `all_reduce` and `code_reduce` have in common: statistics first, and one total for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire.codec import AgreeingCodec
from gradwire.collectives.feedback import settle, target
from gradwire.collectives.parts import Slice
from gradwire.key import Key
from gradwire.transport.link import Link


def agree(link: Link, codec: AgreeingCodec, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The statistics of each input, combined over the workers in one message."""
    with link.account.timed("encode"):
        own = [codec.statistics(x) for x in inputs]
        joined = torch.cat(own)
    if joined.numel():
        if codec.statistics_op == "sum":
            link.sum_in_order(joined)
        else:
            link.all_reduce(joined, codec.statistics_op)
        link.account.message(0, joined.nbytes)
    return torch.split(joined, [statistics.numel() for statistics in own])


class Job(ABC):
    """One slice, and all that what is sent of it depends on."""

    def __init__(self, link: Link, piece: Slice, source: Tensor, shared: Tensor, key: Key) -> None:
        self.piece, self.source, self.at = piece, source, piece.start
        self.key = key.of(tensor=piece.part.tensor, rank=link.rank)
        self.among: dict[str, Any] = {"world": link.size, "shared": shared}

    @abstractmethod
    def encode(self, out: Tensor) -> None:
        """Write what this worker sends."""

    @abstractmethod
    def decode(self, total: Tensor, out: Tensor) -> None:
        """Write the mean."""

    @abstractmethod
    def subtract(self, own: Tensor, out: Tensor) -> None:
        """Subtract what this worker has sent."""

    def settle(self, link: Link, total: Tensor, own: Tensor) -> None:
        """Store the mean and the residual; `own` is what this worker has sent."""
        result = target(link, self.piece)
        self.decode(total, result)
        settle(self.piece, self.source, result, partial(self.subtract, own))
