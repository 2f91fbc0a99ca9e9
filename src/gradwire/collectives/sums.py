"""What `all_reduce` and `code_reduce` have in common: statistics first, and one total for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradwire.codec import Adder, Codec, SummableCodec
from gradwire.collectives.feedback import settle
from gradwire.collectives.parts import Slice
from gradwire.key import Key
from gradwire.transport.link import Link, add_in_order


@dataclass(frozen=True)
class Sum:
    """The total of what all workers have sent of a piece, and this worker's own codes."""

    piece: Slice
    adder: Adder
    key: Key
    total: Tensor
    own: Tensor

    def encode(self, source: Tensor) -> None:
        """Write this worker's own codes."""
        self.adder.encode(source, self.own, self.key, self.piece.start)

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


def agree(link: Link, pieces: Sequence[Slice], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The statistics of each input, combined over the workers: one message for each operation."""
    codecs = [summable(piece.codec) for piece in pieces]
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


def settle_all(link: Link, sums: Sequence[Sum], inputs: Sequence[Tensor]) -> None:
    """Store the means, and update the residuals, of what `inputs` were encoded of."""
    with link.account.timed("decode"):
        for each, source in zip(sums, inputs, strict=True):
            settle(link, each.piece, source, each.decode, each.subtract)


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
