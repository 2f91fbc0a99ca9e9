"""`all_reduce`: codes are added by the network, and their total decoded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import NOTHING, Codec, NetworkAdder, SummableCodec
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.feedback import vectors_of
from gradwire.collectives.parts import Slice
from gradwire.collectives.sums import (
    Sum,
    agree,
    combined,
    settle_all,
    simulate_sum,
    sources,
    summable,
)
from gradwire.key import Key
from gradwire.transport.link import Link


class AllReduce(Collective):
    """Let the network add: for codecs with a `NetworkAdder` and no others."""

    name = "all_reduce"

    def check(self, codec: Codec, world: int) -> None:
        if not isinstance(codec, SummableCodec) or codec.network_adder(world) is None:
            other = "code_reduce" if isinstance(codec, SummableCodec) else "two_shot"
            raise TypeError(
                f"payloads of {codec!r} cannot be summed by all_reduce; use `{other}`, or a codec "
                "that can, `GlobalQSGD`."
            )

    def message_nbytes(self, codec: Codec, numel: int, world: int) -> int:
        return _adder(codec, world).code_nbytes(numel)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        vectors = vectors_of(link, pieces)
        inputs = sources(link, vectors)
        shared = agree(link, vectors, inputs)
        adders = [_adder(p.codec, link.size, s) for p, s in zip(pieces, shared, strict=True)]
        sizes = [a.code_nbytes(p.numel) for a, p in zip(adders, pieces, strict=True)]
        message = link.room("send", sum(sizes))
        sums = [
            Sum(each, adder, key.of(tensor=piece.part.tensor, rank=link.rank), codes, codes)
            for each, piece, adder, codes in zip(
                vectors, pieces, adders, torch.split(message, sizes), strict=True
            )
        ]  # the total takes the place of codes
        with link.account.timed("encode"):
            for each, source in zip(sums, inputs, strict=True):
                each.encode(source)
        link.account.message(sum(piece.numel for piece in pieces), sum(sizes))
        with link.in_turn():
            link.all_reduce(message.view(adders[0].dtype))
        settle_all(link, sums)
        return []

    def simulate(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> Tensor:
        shared = combined(summable(codec), vectors)
        return simulate_sum(_adder(codec, len(vectors), shared), vectors, key)


def _adder(codec: Codec, world: int, shared: Tensor = NOTHING) -> NetworkAdder:
    adder = summable(codec).network_adder(world, shared)
    assert adder is not None
    return adder
