"""`all_gather` and `two_shot`: payloads are carried, and decoded where they arrive."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import Codec
from gradwire.collectives.feedback import settle, take, target
from gradwire.collectives.framing import aligned, exchange, gather, payloads_of
from gradwire.collectives.parts import Slice, cut
from gradwire.key import Key
from gradwire.transport.link import Link

Rates = dict[int, float]


def all_gather(link: Link, codec: Codec, pieces: Sequence[Slice], key: Key) -> Rates:
    """Send every payload to everyone."""
    inputs = take(link, pieces)
    message, sizes = encode_all(link, codec, pieces, inputs, key)
    all_sizes = announce(link, codec, pieces, sizes)
    received = gather(link, message, all_sizes)
    own, rates = payloads_of(message, sizes), []
    with link.account.timed("decode"):
        for i, (piece, source) in enumerate(zip(pieces, inputs, strict=True)):
            keys = [key.of(tensor=piece.part.tensor, rank=rank) for rank in range(link.size)]
            theirs, result = [row[i] for row in received], target(link, piece)
            codec.aggregate_into(theirs, result, keys, piece.start)
            _settle(link, codec, piece, source, result, own[i], keys[link.rank])
            if codec.num_dependent(link.size):
                rates.append(codec.failure_rate(theirs, piece.numel, keys, piece.start))
    return _rates_by_parameter(pieces, rates) if rates else {}


def two_shot(link: Link, codec: Codec, pieces: Sequence[Slice], key: Key) -> Rates:
    """Send payloads of each shard to its owner, and the owner's mean to everyone."""
    shards = cut(pieces, codec.grain, link.size)
    everything = [piece for shard in shards for piece in shard]
    inputs = take(link, everything)
    message, sizes = encode_all(link, codec, everything, inputs, key)
    all_sizes = announce(link, codec, everything, sizes)
    received = exchange(link, message, all_sizes, [len(shard) for shard in shards])
    mine = shards[link.rank]
    means, rates = average(link, codec, mine, received, key)

    again = key.of(rank=0, hop=1)
    own = payloads_of(message, sizes)
    shard_message, shard_sizes = encode_all(link, codec, mine, means, again, room="reply")
    replies = gather(link, shard_message, _shard_sizes(link, codec, shard_sizes, shards))
    totals = [payload for reply in replies for payload in reply]
    with link.account.timed("decode"):
        for piece, source, total, sent in zip(everything, inputs, totals, own, strict=True):
            result = target(link, piece)
            codec.decode_into(total, result, again.of(tensor=piece.part.tensor), piece.start)
            own_key = key.of(tensor=piece.part.tensor, rank=link.rank)
            _settle(link, codec, piece, source, result, sent, own_key)
    if not codec.num_dependent(link.size):
        return {}
    return _rates_by_parameter(everything, _gather_rates(link, rates, shards))


def encode_all(
    link: Link,
    codec: Codec,
    pieces: Sequence[Slice],
    inputs: Sequence[Tensor],
    key: Key,
    *,
    room: str = "send",
) -> tuple[Tensor, list[int]]:
    """One message of the payloads of `inputs`, which belong to `pieces`, and their sizes."""
    out = link.room(room, sum(aligned(codec.max_nbytes(piece.numel)) for piece in pieces))
    rank = link.rank if key.hop == 0 else 0
    sizes, at = [], 0
    with link.account.timed("encode"):
        for piece, source in zip(pieces, inputs, strict=True):
            own = key.of(tensor=piece.part.tensor, rank=rank)
            world = 1 if piece.part.alone or key.hop else link.size
            sizes.append(codec.encode_into(source, out[at:], own, piece.start, world=world))
            at += aligned(sizes[-1])
    return out[:at], sizes


def announce(
    link: Link, codec: Codec, pieces: Sequence[Slice], sizes: list[int]
) -> list[list[int]]:
    """Enter this worker's message into the account; the sizes of every worker's payloads."""
    link.account.message(sum(piece.numel for piece in pieces), sum(sizes))
    return [sizes] * link.size if codec.fixed_size else link.gather_sizes(sizes)


def average(
    link: Link, codec: Codec, shard: Sequence[Slice], received: list[list[Tensor]], key: Key
) -> tuple[Sequence[Tensor], list[float]]:
    """The means of this worker's shard, and how likely values in them are wrong."""
    numels = [piece.numel for piece in shard]
    means, rates = torch.split(link.floats("mean", sum(numels)), numels), []
    with link.account.timed("decode"):
        for i, (piece, mean) in enumerate(zip(shard, means, strict=True)):
            keys = [key.of(tensor=piece.part.tensor, rank=rank) for rank in range(link.size)]
            theirs = [row[i] for row in received]
            codec.aggregate_into(theirs, mean, keys, piece.start)
            if codec.num_dependent(link.size):
                rates.append(codec.failure_rate(theirs, piece.numel, keys, piece.start))
    return means, rates


def _settle(
    link: Link,
    codec: Codec,
    piece: Slice,
    source: Tensor,
    result: Tensor,
    payload: Tensor,
    key: Key,
) -> None:
    def subtract(out: Tensor) -> None:
        said = payload
        if codec.num_dependent(link.size) and not piece.part.alone:  # what it says if none fails
            room = torch.empty(codec.max_nbytes(piece.numel), dtype=torch.uint8)
            said = room[: codec.encode_into(source, room, key, piece.start)]
        codec.decode_into(said, out, key, piece.start, weight=-1.0, accumulate=True)

    settle(piece, source, result, subtract)


def _shard_sizes(
    link: Link, codec: Codec, sizes: list[int], shards: list[list[Slice]]
) -> list[list[int]]:
    """The sizes of the payloads of every shard, of which this worker's are `sizes`."""
    if codec.fixed_size:
        return [[codec.max_nbytes(piece.numel) for piece in shard] for shard in shards]
    return _gather_rows(link, sizes, shards)


def _gather_rates(link: Link, rates: list[float], shards: list[list[Slice]]) -> list[float]:
    """The rates of all slices, sent as 2^-30ths."""
    rows = _gather_rows(link, [round(rate * 2**30) for rate in rates], shards)
    return [rate / 2**30 for row in rows for rate in row]


def _gather_rows(link: Link, row: list[int], shards: list[list[Slice]]) -> list[list[int]]:
    """A number for every slice of every shard, of which those of this worker's are `row`."""
    most = max(len(shard) for shard in shards)
    rows = link.gather_sizes(row + [0] * (most - len(row)))
    return [row[: len(shard)] for row, shard in zip(rows, shards, strict=True)]


def _rates_by_parameter(pieces: Sequence[Slice], rates: Sequence[float]) -> Rates:
    """The mean rate of each parameter's slices, weighted by their values."""
    wrong: dict[int, list[float]] = {}
    for piece, rate in zip(pieces, rates, strict=True):
        sums = wrong.setdefault(piece.part.tensor, [0.0, 0.0])
        sums[0] += rate * piece.numel
        sums[1] += piece.numel
    return {tensor: failures / values for tensor, (failures, values) in wrong.items()}
