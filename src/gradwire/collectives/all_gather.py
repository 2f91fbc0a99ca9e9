"""`all_gather`: every payload goes to everyone. Traffic grows with the workers; best for two."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import Codec
from gradwire.collectives import framing
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.feedback import vectors_of
from gradwire.collectives.parts import Slice
from gradwire.key import Key
from gradwire.transport.link import Link


class AllGather(Collective):
    """Send every payload to everyone."""

    name = "all_gather"

    def check(self, codec: Codec, world: int) -> None:
        """Payloads of all codecs can be gathered."""

    def message_nbytes(self, codec: Codec, numel: int, world: int) -> int:
        return codec.max_nbytes(numel)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        vectors, own_key = vectors_of(link, pieces), key.of(rank=link.rank)
        message, sizes = framing.encode_all(link, pieces, [v.encode for v in vectors], own_key)
        rows = framing.gather(link, message, framing.announce(link, pieces, sizes))
        received = framing.received(pieces, rows, key)
        with link.account.timed("decode"):
            return [
                (vector.piece, vector.settle(link, theirs.decode))
                for vector, theirs in zip(vectors, received, strict=True)
            ]

    def simulate(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> Tensor:
        keys = [key.of(rank=rank) for rank in range(len(vectors))]
        payloads = [codec.encode(x, own) for x, own in zip(vectors, keys, strict=True)]
        mean = torch.empty(vectors[0].numel(), device=vectors[0].device)
        codec.mean_into(payloads, mean, keys)
        return mean
