"""How a codec's payloads travel: `all_reduce`, `all_gather`, `two_shot`.

Each replaces the gradients of a list of parts by their mean over the workers. `simulate` says in
one process what that mean is; the others must give the same bits on every rank.

- `all_reduce` sums payloads in the network: for a `SummableCodec` and no other.
- `all_gather` sends every payload to everyone: traffic grows with the workers; best for two.
- `two_shot` cuts the parts into shards, one owned by each worker. Payloads of a shard go to its
  owner (first shot), who decodes, averages and encodes again for all (second shot). A worker
  sends about two payloads however many workers there are.

Random streams are keyed by parameter and position in it, so the mean does not depend on how
parameters are gathered into buckets or cut into shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import Codec, Key, SummableCodec
from gradwire.link import Link
from gradwire.parts import Part, Slice, cut

ALIGN = 8
"""Payloads start at multiples of this many bytes, so that they can hold any type."""


def choose(codec: Codec, world: int) -> str:
    """The collective for `codec` among `world` workers."""
    if codec.collective is not None:
        return codec.collective
    if isinstance(codec, SummableCodec):
        return "all_reduce"
    return "all_gather" if world <= 2 else "two_shot"


def check(codec: Codec, collective: str) -> None:
    """Refuse a pair that has no meaning."""
    if collective not in COLLECTIVES:
        raise ValueError(f"`collective` must be one of {', '.join(COLLECTIVES)}, got {collective}.")
    if collective == "all_reduce" and not isinstance(codec, SummableCodec):
        raise TypeError(
            f"payloads of {codec!r} cannot be summed by all_reduce; use `two_shot` or "
            "`all_gather`, or a codec that can, such as `Cast`."
        )


def simulate(
    codec: Codec, vectors: Sequence[Tensor], key: Key, collective: str | None = None
) -> Tensor:
    """The mean that workers holding `vectors` agree on (float32, flat).

    Sums of `all_reduce` are taken in the order of ranks; a backend may add floats in another
    order and differ in the last bit.
    """
    collective = collective or choose(codec, len(vectors))
    check(codec, collective)
    vectors = [vector.detach().reshape(-1) for vector in vectors]
    keys = [key.of(rank=rank) for rank in range(len(vectors))]
    if isinstance(codec, SummableCodec) and collective == "all_reduce":
        return _simulate_sum(codec, vectors, keys)
    world = len(vectors)
    mean = torch.empty(vectors[0].numel(), dtype=torch.float32)
    payloads = [codec.encode(x, own, world=world) for x, own in zip(vectors, keys, strict=True)]
    codec.aggregate_into(payloads, mean, keys)
    if collective == "two_shot":
        again = key.of(rank=0, hop=1)
        mean = codec.decode(codec.encode(mean, again), mean.numel(), again)
    return mean


def _simulate_sum(codec: SummableCodec, vectors: Sequence[Tensor], keys: Sequence[Key]) -> Tensor:
    world, numel = len(vectors), vectors[0].numel()
    statistics = torch.stack([codec.statistics(vector) for vector in vectors])
    shared = statistics.amax(0) if codec.statistics_op == "max" else statistics.sum(0)
    total = torch.zeros(codec.term_nbytes(numel, world), dtype=torch.uint8).view(codec.sum_dtype)
    for vector, own in zip(vectors, keys, strict=True):
        term = torch.empty_like(total)
        codec.encode_term(vector, term.view(torch.uint8), own, 0, world=world, shared=shared)
        total += term
    mean = torch.empty(numel, dtype=torch.float32)
    codec.decode_sum(total.view(torch.uint8), mean, keys[0], 0, world=world, shared=shared)
    return mean


def all_reduce(link: Link, codec: Codec, parts: Sequence[Part], key: Key) -> None:
    """Sum terms in the network."""
    assert isinstance(codec, SummableCodec)
    sum_terms(link, [codec] * len(parts), parts, key)


def sum_terms(
    link: Link, codecs: Sequence[SummableCodec], parts: Sequence[Part], key: Key
) -> list[tuple[float, ...]]:
    """All-reduce with a codec for each part, in one message, and what each sum remarks.

    The codecs must have one `sum_dtype` and one `statistics_op`.
    """
    world = link.size
    keys = [key.of(tensor=part.tensor, rank=link.rank) for part in parts]
    slices = [Slice(part, 0, part.values.numel()) for part in parts]
    shared = _agree(link, codecs, slices)
    jobs = list(zip(codecs, slices, keys, shared, strict=True))
    sizes = [codec.term_nbytes(piece.numel, world) for codec, piece, _, _ in jobs]
    message = link.room("send", sum(sizes))
    terms = torch.split(message, sizes)
    with link.account.timed("encode"):
        for (codec, piece, own, common), term in zip(jobs, terms, strict=True):
            source = _source(link, piece)
            codec.encode_term(source, term, own, 0, world=world, shared=common)
        feedback = any(piece.residual is not None for piece in slices)
        kept = link.room("own", sum(sizes) if feedback else 0)
        kept.copy_(message[: kept.numel()])  # the sum takes the place of the terms
    link.account.message(sum(piece.numel for piece in slices), sum(sizes))
    link.all_reduce(message.view(codecs[0].sum_dtype))
    with link.account.timed("decode"):
        remarks = [job[0].remark(total, world) for job, total in zip(jobs, terms, strict=True)]
        own_terms = torch.split(kept, sizes) if feedback else terms
        for (codec, piece, own, common), total, term in zip(jobs, terms, own_terms, strict=True):
            source, result = _source(link, piece), _target(link, piece)
            codec.decode_sum(total, result, own, 0, world=world, shared=common)
            if piece.residual is not None and _finite(result):
                residual = piece.residual.copy_(source)
                codec.subtract_term(term, residual, own, 0, world=world, shared=common)
            _store(piece, result)
    return remarks


def _agree(
    link: Link, codecs: Sequence[SummableCodec], slices: Sequence[Slice]
) -> Sequence[Tensor]:
    """The statistics of each slice, combined over the workers in one message."""
    with link.account.timed("encode"):
        pairs = zip(codecs, slices, strict=True)
        own = [codec.statistics(_source(link, piece)) for codec, piece in pairs]
        joined = torch.cat(own)
    if joined.numel():
        link.all_reduce(joined, codecs[0].statistics_op)
        link.account.message(0, 4 * joined.numel())
    return torch.split(joined, [statistics.numel() for statistics in own])


def all_gather(link: Link, codec: Codec, parts: Sequence[Part], key: Key) -> None:
    """Send every payload to everyone."""
    slices = [Slice(part, 0, part.values.numel()) for part in parts]
    message, sizes = _encode(link, codec, slices, key)
    _account_messages(link, slices, sizes)
    messages, all_sizes = _gather(link, codec, message, sizes)
    payloads = [_payloads(m, s) for m, s in zip(messages, all_sizes, strict=True)]
    own = _payloads(message, sizes)
    with link.account.timed("decode"):
        for i, piece in enumerate(slices):
            keys = [key.of(tensor=piece.part.tensor, rank=rank) for rank in range(link.size)]
            source, result = _source(link, piece), _target(link, piece)
            codec.aggregate_into([row[i] for row in payloads], result, keys)
            _settle(codec, piece, source, result, own[i], keys[link.rank])


def two_shot(link: Link, codec: Codec, parts: Sequence[Part], key: Key) -> None:
    """Send payloads of each shard to its owner, and the owner's mean to everyone."""
    shards = cut(parts, codec.grain, link.size)
    everything = [piece for shard in shards for piece in shard]
    message, sizes = _encode(link, codec, everything, key)
    _account_messages(link, everything, sizes)
    mine = shards[link.rank]
    received = _exchange(link, codec, message, sizes, [len(shard) for shard in shards])

    mean = link.floats("mean", sum(piece.numel for piece in mine))
    means = torch.split(mean, [piece.numel for piece in mine])
    with link.account.timed("decode"):
        for i, (piece, out) in enumerate(zip(mine, means, strict=True)):
            keys = [key.of(tensor=piece.part.tensor, rank=rank) for rank in range(link.size)]
            codec.aggregate_into([row[i] for row in received], out, keys, piece.start)

    again = key.of(rank=0, hop=1)
    own = _payloads(message, sizes)
    shard_message, shard_sizes = _encode(link, codec, mine, again, sources=means, room="reply")
    replies = _gather_shards(link, codec, shard_message, shard_sizes, shards)
    with link.account.timed("decode"):
        for piece, payload, sent in zip(everything, replies, own, strict=True):
            source, result = _source(link, piece), _target(link, piece)
            codec.decode_into(payload, result, again.of(tensor=piece.part.tensor), piece.start)
            own_key = key.of(tensor=piece.part.tensor, rank=link.rank)
            _settle(codec, piece, source, result, sent, own_key)


COLLECTIVES = {"all_reduce": all_reduce, "all_gather": all_gather, "two_shot": two_shot}


def _source(link: Link, piece: Slice) -> Tensor:
    """What is to be encoded: the gradient, with the residual if there is one."""
    if piece.residual is None:
        return piece.values
    return torch.add(piece.residual, piece.values, out=link.floats("source", piece.numel))


def _target(link: Link, piece: Slice) -> Tensor:
    """Where the mean is decoded to, as float32."""
    if piece.values.dtype == torch.float32:
        return piece.values
    return link.floats("target", piece.numel)


def _settle(
    codec: Codec, piece: Slice, source: Tensor, result: Tensor, payload: Tensor, key: Key
) -> None:
    """Store the mean; what the payload did not say of the source becomes the residual.

    Where the mean is not finite the residual stays as it was. Every rank sees the same mean, so
    all decide alike.
    """
    if piece.residual is not None and _finite(result):
        residual = piece.residual.copy_(source)
        codec.decode_into(payload, residual, key, piece.start, weight=-1.0, accumulate=True)
    _store(piece, result)


def _store(piece: Slice, result: Tensor) -> None:
    if result.data_ptr() != piece.values.data_ptr():
        piece.values.copy_(result)


def _finite(values: Tensor) -> bool:
    return bool(values.isfinite().all())


def _encode(
    link: Link,
    codec: Codec,
    slices: Sequence[Slice],
    key: Key,
    *,
    sources: Sequence[Tensor] | None = None,
    room: str = "send",
) -> tuple[Tensor, list[int]]:
    """One message of the payloads of `slices`, and their sizes."""
    out = link.room(room, sum(_aligned(codec.max_nbytes(piece.numel)) for piece in slices))
    rank, world = (link.rank, link.size) if key.hop == 0 else (0, 1)
    sizes, at = [], 0
    with link.account.timed("encode"):
        for i, piece in enumerate(slices):
            own = key.of(tensor=piece.part.tensor, rank=rank)
            source = _source(link, piece) if sources is None else sources[i]
            sizes.append(codec.encode_into(source, out[at:], own, piece.start, world=world))
            at += _aligned(sizes[-1])
    return out[:at], sizes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def _message_nbytes(sizes: Sequence[int]) -> int:
    return sum(_aligned(size) for size in sizes)


def _payloads(message: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The payloads of a message."""
    payloads, at = [], 0
    for size in sizes:
        payloads.append(message[at : at + size])
        at += _aligned(size)
    return payloads


def _account_messages(link: Link, slices: Sequence[Slice], sizes: Sequence[int]) -> None:
    link.account.message(sum(piece.numel for piece in slices), sum(sizes))


def _gather(
    link: Link, codec: Codec, message: Tensor, sizes: list[int]
) -> tuple[list[Tensor], list[list[int]]]:
    """Everyone's message, with the sizes of its payloads; all have as many."""
    all_sizes = [sizes] * link.size if codec.fixed_size else link.gather_sizes(sizes)
    return _all_gather_uneven(link, message, [_message_nbytes(row) for row in all_sizes]), all_sizes


def _all_gather_uneven(link: Link, message: Tensor, nbytes: list[int]) -> list[Tensor]:
    """Everyone's message, of `nbytes` each. Gloo wants them alike, so they are padded."""
    longest = max(nbytes)
    received = link.room("receive", link.size * longest).view(link.size, longest)
    if message.numel() < longest:
        padded = link.room("padded", longest)
        padded[: message.numel()] = message
        message = padded
    link.all_gather(received.view(-1), message)
    return [received[rank, :size] for rank, size in enumerate(nbytes)]


def _exchange(
    link: Link, codec: Codec, message: Tensor, sizes: list[int], counts: list[int]
) -> list[list[Tensor]]:
    """The first shot: for each rank, its payloads of the shard that this worker owns.

    `counts` is the number of payloads in each shard.
    """
    all_sizes = [sizes] * link.size if codec.fixed_size else link.gather_sizes(sizes)
    ends = [sum(counts[: rank + 1]) for rank in range(link.size)]
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    mine = [row[spans[link.rank]] for row in all_sizes]
    out_nbytes = [_message_nbytes(row) for row in mine]
    in_nbytes = [_message_nbytes(sizes[span]) for span in spans]
    received = link.room("receive", sum(out_nbytes))
    link.all_to_all(received, message, out_nbytes, in_nbytes)
    messages = torch.split(received, out_nbytes)
    return [_payloads(m, row) for m, row in zip(messages, mine, strict=True)]


def _gather_shards(
    link: Link, codec: Codec, message: Tensor, sizes: list[int], shards: list[list[Slice]]
) -> list[Tensor]:
    """The second shot: the payloads of all shards, in order. Shards differ in length."""
    if codec.fixed_size:
        all_sizes = [[codec.max_nbytes(piece.numel) for piece in shard] for shard in shards]
    else:
        most = max(len(shard) for shard in shards)
        rows = link.gather_sizes(sizes + [0] * (most - len(sizes)))
        all_sizes = [row[: len(shard)] for row, shard in zip(rows, shards, strict=True)]
    messages = _all_gather_uneven(link, message, [_message_nbytes(row) for row in all_sizes])
    return [
        payload
        for shard_message, row in zip(messages, all_sizes, strict=True)
        for payload in _payloads(shard_message, row)
    ]
