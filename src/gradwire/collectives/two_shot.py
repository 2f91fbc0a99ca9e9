"""`two_shot`: payloads of a shard go to its owner, and the owner's mean to everyone.

The slices are cut into shards, one owned by each worker. A worker sends about two payloads however
many workers there are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import Codec, Seen
from gradwire.collectives import framing
from gradwire.collectives.all_gather import AllGather
from gradwire.collectives.collective import Sighting
from gradwire.collectives.feedback import vectors_of
from gradwire.collectives.parts import Slice, cut
from gradwire.key import Hop, Key
from gradwire.transport.link import Link

Shards = Sequence[Sequence[Slice]]


class TwoShot(AllGather):
    """Send payloads of each shard to its owner, and the owner's mean to everyone."""

    name = "two_shot"

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        shards = cut(pieces, link.size)
        everything = [piece for shard in shards for piece in shard]
        vectors, own_key = vectors_of(link, everything), key.of(rank=link.rank)
        message, sizes = framing.encode_all(link, everything, [v.encode for v in vectors], own_key)
        all_sizes = framing.announce(link, everything, sizes)
        rows = framing.exchange(link, message, all_sizes, [len(shard) for shard in shards])
        means, seen = framing.average(link, framing.received(shards[link.rank], rows, key))
        pairs = zip(shards[link.rank], means, strict=True)
        means = [_as_sent(piece.codec, mean, piece.values.dtype) for piece, mean in pairs]
        replies = _reply(link, shards, means, key.of(rank=0, hop=Hop.MEAN))
        with link.account.timed("decode"):
            for vector, reply in zip(vectors, replies, strict=True):
                vector.settle(link, reply.decode)
        return _share_seen(link, shards, seen)

    def simulate(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> Tensor:
        mean, again = super().simulate(codec, vectors, key), key.of(rank=0, hop=Hop.MEAN)
        mean = _as_sent(codec, mean, vectors[0].dtype)
        return codec.decode(codec.encode(mean, again), mean.numel(), again)


def _as_sent(codec: Codec, mean: Tensor, dtype: torch.dtype) -> Tensor:
    """Where all bits arrive, the mean is rounded to the type of the gradient before it is sent."""
    return mean.to(dtype) if codec.keeps_bits else mean


def _reply(link: Link, shards: Shards, means: Sequence[Tensor], key: Key) -> list[framing.Sent]:
    """The means of all pieces, of which this worker encodes and sends those of its shard."""
    mine = shards[link.rank]
    encoders = framing.encoders(mine, means)
    message, sizes = framing.encode_all(link, mine, encoders, key, room="reply")
    if all(piece.codec.fixed_size for shard in shards for piece in shard):
        all_sizes = [[p.codec.max_nbytes(p.numel) for p in shard] for shard in shards]
    else:
        all_sizes = framing.gather_rows(link, sizes, [len(shard) for shard in shards])
    replies = framing.gather(link, message, all_sizes)
    pairs = zip(shards, replies, strict=True)
    return [each for shard, reply in pairs for each in framing.sent(shard, reply, key)]


def _share_seen(link: Link, shards: Shards, seen: Sequence[Seen]) -> list[Sighting]:
    """What owners have seen of all pieces, of which `seen` is of this worker's shard."""
    lengths = [sum(piece.codec.num_seen for piece in shard) for shard in shards]
    if not any(lengths):
        return []
    own = [_to_bits(number) for numbers in seen for number in numbers]
    rows = framing.gather_rows(link, own, lengths)
    found = []
    for shard, row in zip(shards, rows, strict=True):
        numbers = iter(map(_from_bits, row))
        found += [(p, tuple(next(numbers) for _ in range(p.codec.num_seen))) for p in shard]
    return found


def _to_bits(number: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _from_bits(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return number
