"""`relay`: a `two_shot` whose owners feed back what they lose, for biased codecs.

Workers send payloads of each stretch of a parameter to its owner. The owner adds its own vector as
it is, for that has no way to go, and sends a payload of the mean to everyone. What this does not
say of the mean, times the workers, it owes from then on as if it were of its own gradient. So there
is one residual a worker, and at any time

    workers * (sum of all means) + (sum of all residuals) = (sum of all gradients).

A worker sends about two payloads however many there are. Who owns what follows from the parameter
alone, so that no mean depends on how parameters are cut into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from gradwire.codec import Codec
from gradwire.collectives import framing
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.feedback import Own, debt_of, tell, vectors_of
from gradwire.collectives.parts import Part, Slice, whole
from gradwire.kernels.exact import is_finite
from gradwire.kernels.formats.debt import Debt
from gradwire.key import Hop, Key
from gradwire.transport.link import Link

_MOST = 1 << 20
"""The most values of a stretch; about so many of a job go to each owner."""
_FEWEST = 1 << 14
"""The fewest, unless a parameter has no more: each costs a payload."""

Shards = Sequence[Sequence[Slice]]


class Relay(Collective):
    """Send payloads of each stretch to its owner, and the owner's mean to everyone."""

    name = "relay"

    def check(self, codec: Codec, world: int) -> None:
        if not codec.feeds_back:
            raise TypeError(
                f"payloads of {codec!r} need each other to be decoded, so that no owner can add "
                "them to its own vector; use `all_gather` or `two_shot`."
            )

    def message_nbytes(self, codec: Codec, numel: int, world: int) -> int:
        return codec.max_nbytes(numel)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        shards = deal(pieces, link.size)
        mine = shards[link.rank]
        others = [p for rank, shard in enumerate(shards) if rank != link.rank for p in shard]
        vectors, own_key = vectors_of(link, others), key.of(rank=link.rank)
        message, sizes = framing.encode_all(link, others, [v.encode for v in vectors], own_key)
        rows = _exchange(link, shards, message, sizes)
        totals = _totals(link, mine)
        replies = _reply(link, shards, totals, rows, key)
        own_replies = replies.pop(link.rank)
        with link.account.timed("decode"):
            for vector, reply in zip(vectors, chain(*replies), strict=True):
                vector.settle(link, reply.decode)
            for piece, debt, reply in zip(mine, totals, own_replies, strict=True):
                _settle_own(link, piece, debt, reply)
        return []

    def simulate(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> Tensor:
        mean = torch.empty(vectors[0].numel(), device=vectors[0].device)
        shards = deal(whole([Part(mean, key.tensor, codec)]), len(vectors))
        for owner, shard in enumerate(shards):
            for piece in shard:
                piece.values.copy_(_simulate_piece(codec, vectors, key, owner, piece))
        return mean


def deal(pieces: Sequence[Slice], world: int) -> list[list[Slice]]:
    """The stretches of `pieces` that each of `world` workers owns.

    Stretches of a parameter begin at multiples of a length that depends on its own, and go to the
    workers in turn. A parameter that may not be cut goes to one.
    """
    shards: list[list[Slice]] = [[] for _ in range(world)]
    for piece in pieces:
        length = _stretch(piece, world)
        start = piece.start
        while start < piece.stop:
            turn = start // length
            stop = min((turn + 1) * length, piece.stop)
            shards[(piece.part.tensor + turn) % world].append(Slice(piece.part, start, stop))
            start = stop
    return shards


def _stretch(piece: Slice, world: int) -> int:
    numel, grain = piece.part.values.numel(), piece.codec.grain
    if grain is None:
        return max(numel, 1)
    rounds = -(-numel // (world * _MOST))
    return -(-max(numel // (rounds * world), _FEWEST) // grain) * grain


def _exchange(link: Link, shards: Shards, message: Tensor, sizes: list[int]) -> list[list[Tensor]]:
    """For each other rank, its payloads of the shard that this worker owns; its own are empty."""
    counts = [len(shard) for shard in shards]
    before, own = sum(counts[: link.rank]), counts[link.rank]
    pieces = [piece for rank, shard in enumerate(shards) if rank != link.rank for piece in shard]
    link.account.message(sum(piece.numel for piece in pieces), sum(sizes))
    if all(piece.codec.fixed_size for shard in shards for piece in shard):
        all_sizes = [_fixed_sizes(shards, rank) for rank in range(link.size)]
    else:
        all_sizes = link.gather_sizes([*sizes[:before], *[0] * own, *sizes[before:]])
    return framing.exchange(link, message, all_sizes, counts)


def _fixed_sizes(shards: Shards, rank: int) -> list[int]:
    """Those of the payloads of worker `rank`, which sends none of what it owns."""
    return [
        0 if owner == rank else piece.codec.max_nbytes(piece.numel)
        for owner, shard in enumerate(shards)
        for piece in shard
    ]


def _totals(link: Link, mine: Sequence[Slice]) -> list[Debt]:
    """What this worker adds of its own, where `owed` of each says."""
    numels = [piece.numel for piece in mine]
    rooms = torch.split(link.floats("total", sum(numels)), numels)
    debts = [debt_of(piece, room) for piece, room in zip(mine, rooms, strict=True)]
    with link.account.timed("encode"):
        for piece, debt in zip(mine, debts, strict=True):
            debt.source(piece.values)
    return debts


def _reply(
    link: Link, shards: Shards, totals: Sequence[Debt], rows: Sequence[Sequence[Tensor]], key: Key
) -> list[list[framing.Sent]]:
    """The means of all pieces, shard by shard.

    `totals` are left with what this worker's payloads do not say of them.
    """
    mine, again = shards[link.rank], key.of(rank=0, hop=Hop.MEAN)
    ranks = [rank for rank in range(link.size) if rank != link.rank]
    nbytes = [framing.aligned(piece.codec.max_nbytes(piece.numel)) for piece in mine]
    out, sizes, at = link.room("reply", sum(nbytes)), [], 0
    with link.account.timed("encode"):
        for i, (piece, total) in enumerate(zip(mine, totals, strict=True)):
            keys = [key.of(tensor=piece.part.tensor, rank=rank) for rank in ranks]
            payloads, own = [rows[rank][i] for rank in ranks], again.of(tensor=piece.part.tensor)
            sizes.append(piece.codec.relay(payloads, total.owed, out[at:], keys, own, piece.start))
            at += framing.aligned(sizes[-1])
    link.account.message(sum(piece.numel for piece in mine), sum(sizes))
    if all(piece.codec.fixed_size for shard in shards for piece in shard):
        all_sizes = [[p.codec.max_nbytes(p.numel) for p in shard] for shard in shards]
    else:
        all_sizes = framing.gather_rows(link, sizes, [len(shard) for shard in shards])
    replies = framing.gather(link, out[:at], all_sizes)
    pairs = zip(shards, replies, strict=True)
    return [framing.sent(shard, reply, again) for shard, reply in pairs]


def _settle_own(link: Link, piece: Slice, debt: Debt, reply: framing.Sent) -> None:
    """An owner owes what its payload of the mean did not say, times the workers: `debt.owed`."""
    left = debt.owed
    if piece.part.watch is not None:  # which is told of the sum, and what is lost of that
        reply.decode(source := torch.empty_like(left))
        tell(piece, source.mul_(link.size).add_(left), lambda out: out.copy_(left))
    debt.leave()
    Own(piece, debt, for_all=True).settle(link, reply.decode)
    if piece.undue is not None and is_finite(piece.values):
        piece.undue.add_(left)


def _simulate_piece(
    codec: Codec, vectors: Sequence[Tensor], key: Key, owner: int, piece: Slice
) -> Tensor:
    """The mean of one stretch."""
    start, numel = piece.start, piece.numel
    parts = [vector[start : piece.stop] for vector in vectors]
    room = torch.empty(codec.max_nbytes(numel), dtype=torch.uint8, device=parts[0].device)
    payloads, keys = [], []
    for rank, part in enumerate(parts):
        if rank != owner:
            keys.append(key.of(rank=rank))
            payloads.append(room[: codec.encode_into(part, room, keys[-1], start)].clone())
    total, again = parts[owner].to(torch.float32, copy=True), key.of(rank=0, hop=Hop.MEAN)
    size = codec.relay(payloads, total, room, keys, again, start)
    codec.decode_into(room[:size], total, again, start)
    return total
