"""`gather_shards`: the payload of each shard goes from its owner to everyone."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codec import Codec
from gradwire.collectives import framing
from gradwire.collectives.parts import Part, whole
from gradwire.key import Hop, Key
from gradwire.transport.link import Link


def gather_shards(link: Link, codec: Codec, out: Tensor, own: Tensor, key: Key) -> None:
    """Fill `out` with what the payloads of all shards say, of which `own` is this worker's.

    Its own payload is decoded like the others, so that every worker gets the same bits. Shards
    have the numbers from that of `key` on.
    """
    key = key.of(hop=Hop.WEIGHTS)
    pieces = whole([Part(own, key.tensor + link.rank, codec)])
    message, sizes = framing.encode_all(link, pieces, framing.encoders(pieces, [own]), key)
    rows = framing.gather(link, message, framing.announce(link, pieces, sizes))
    parts = [Part(x, key.tensor + i, codec) for i, x in enumerate(out.view(link.size, -1))]
    payloads = [payload for (payload,) in rows]
    with link.account.timed("decode"):
        for sent in framing.sent(whole(parts), payloads, key):
            values = sent.piece.values
            if values.dtype == torch.float32 or codec.keeps_bits:
                sent.decode(values)
            else:
                sent.decode(decoded := link.floats("target", values.numel()))
                values.copy_(decoded)
