"""What `all_reduce` and `code_reduce` have in common: statistics first, and one total for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradwire.codec import Adder, Codec, SummableCodec
from gradwire.collectives.feedback import Own, tell
from gradwire.collectives.parts import Slice
from gradwire.key import Key
from gradwire.transport.link import Link, add_in_order


@dataclass(frozen=True)
class Sum:
    """The total of what all workers have sent of a vector, and this worker's own codes."""

    vector: Own
    adder: Adder
    key: Key
    total: Tensor
    own: Tensor

    @property
    def piece(self) -> Slice:
        """What it is the total of."""
        return self.vector.piece

    def encode(self, source: Tensor) -> None:
        """Write this worker's own codes, and take what they say off `source` if that is owed."""
        debt, start = self.vector.debt, self.piece.start
        told = self.vector.watched(source)
        if debt is None:
            self.adder.encode(source, self.own, self.key, start)
        else:
            self.adder.encode_and_subtract(source, self.own, self.key, start)
            debt.leave()
        tell(self.piece, told, self.subtract)

    def decode(self, out: Tensor) -> None:
        """Write the mean."""
        self.adder.decode(self.total, out, self.key, self.piece.start)

    def subtract(self, out: Tensor) -> None:
        """Take what this worker has sent off `out`."""
        self.adder.subtract(self.own, out, self.key, self.piece.start)


def summable(codec: Codec) -> SummableCodec:
    """`codec`, which `check` has found to be one."""
    assert isinstance(codec, SummableCodec)
    return codec


def sources(link: Link, vectors: Sequence[Own]) -> list[Tensor]:
    """What is to be encoded: statistics are of it, and then its codes."""
    with link.account.timed("encode"):
        return [each.source() for each in vectors]


def agree(link: Link, vectors: Sequence[Own], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The statistics of each input, combined over the workers: one message for each operation."""
    codecs = [summable(each.piece.codec) for each in vectors]
    with link.account.timed("encode"):
        shared = [codec.statistics(x) for codec, x in zip(codecs, inputs, strict=True)]
    for op in ("max", "sum"):
        places = [i for i, codec in enumerate(codecs) if codec.statistics_op == op]
        if not any(shared[i].numel() for i in places):
            continue
        joined = torch.cat([shared[i] for i in places])
        link.sum_in_order(joined) if op == "sum" else link.all_reduce(joined, op)
        link.account.message(0, joined.nbytes)
        for i, found in zip(
            places, torch.split(joined, [shared[i].numel() for i in places]), strict=True
        ):
            shared[i] = found
    return shared


def settle_all(link: Link, sums: Sequence[Sum]) -> None:
    """Store the means, and update the residuals."""
    with link.account.timed("decode"):
        for each in sums:
            each.vector.settle(link, each.decode)


def combined(codec: SummableCodec, vectors: Sequence[Tensor]) -> Tensor:
    """What `agree` must give, from the vectors of all workers."""
    rows = torch.stack([codec.statistics(vector) for vector in vectors])
    return rows.amax(0) if codec.statistics_op == "max" else add_in_order(rows)


def simulate_sum(adder: Adder, vectors: Sequence[Tensor], key: Key, offset: int = 0) -> Tensor:
    """The mean of `vectors`, one of each rank in order, whose codes are added."""
    numel, key = vectors[0].numel(), key.of(rank=0)
    room = partial(torch.empty, dtype=torch.uint8, device=vectors[0].device)
    codes = room((len(vectors), adder.code_nbytes(numel)))
    for rank, (vector, code) in enumerate(zip(vectors, codes, strict=True)):
        adder.encode(vector, code, key.of(rank=rank), offset)
    total = room(adder.total_nbytes(numel))
    adder.add(codes, total, numel, key, offset)
    mean = torch.empty(numel, device=vectors[0].device)
    adder.decode(total, mean, key, offset)
    return mean
