"""`gather_shards`: the payload of each shard goes from its owner to everyone."""

from __future__ import annotations

from torch import Tensor

from gradwire.codec import Codec
from gradwire.collectives.feedback import target
from gradwire.collectives.framing import gather
from gradwire.collectives.parts import Part, whole
from gradwire.collectives.payloads import announce, encode_all
from gradwire.key import Key
from gradwire.transport.link import Link


def gather_shards(link: Link, codec: Codec, out: Tensor, own: Tensor, key: Key) -> None:
    """Fill `out` with what the payloads of all shards say, of which `own` is this worker's.

    Its own payload is decoded like the others, so that every worker gets the same bits. Shards
    have the numbers from that of `key` on.
    """
    key = key.of(hop=3)
    pieces = whole([Part(own, key.tensor + link.rank)])
    message, sizes = encode_all(link, codec, pieces, [own], key)
    received = gather(link, message, announce(link, codec, pieces, sizes))
    shards = whole([Part(shard, key.tensor + i) for i, shard in enumerate(out.view(link.size, -1))])
    with link.account.timed("decode"):
        for shard, (payload,) in zip(shards, received, strict=True):
            values = target(link, shard)
            codec.decode_into(payload, values, key.of(tensor=shard.part.tensor))
            if values.data_ptr() != shard.values.data_ptr():
                shard.values.copy_(values)
