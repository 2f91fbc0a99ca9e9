"""How a codec's payloads travel: `all_reduce`, `all_gather`, `two_shot`, `code_reduce`.

Each replaces the gradients of a list of parts by their mean over the workers. `simulate` says in
one process what that mean is; the others must give the same bits on every rank.

- `all_reduce` sums payloads in the network: for a `SummableCodec` and no other.
- `all_gather` sends every payload to everyone: traffic grows with the workers; best for two.
- `two_shot` cuts the parts into shards, one owned by each worker. Payloads of a shard go to its
  owner (first shot), who decodes, averages and encodes again for all (second shot). A worker
  sends about two payloads however many workers there are.
- `code_reduce` is a `two_shot` whose owners add codes without decoding them: for a
  `ReducibleCodec` and no other.

Each returns the failure rate of every parameter (`Codec.failure_rate`), the same on all ranks;
none if the codec's payloads do not depend on each other.

Random streams are keyed by parameter and position in it, so the mean does not depend on how
parameters are gathered into buckets or cut into shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import Codec, Key, ReducibleCodec, SummableCodec, TermCodec
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


def check(codec: Codec, collective: str, world: int = 1) -> None:
    """Refuse a pair that has no meaning, or terms that have no sum among `world` workers."""
    if collective not in COLLECTIVES:
        raise ValueError(f"`collective` must be one of {', '.join(COLLECTIVES)}, got {collective}.")
    if collective == "all_reduce" and not isinstance(codec, SummableCodec):
        raise TypeError(
            f"payloads of {codec!r} cannot be summed by all_reduce; use `two_shot` or "
            "`all_gather`, or a codec that can, such as `Cast`."
        )
    if collective == "code_reduce" and not isinstance(codec, ReducibleCodec):
        raise TypeError(
            f"payloads of {codec!r} cannot be added as codes; use `{choose(codec, 3)}`, or a codec "
            'that can, `GlobalQSGD(dither="exponential")`.'
        )
    if isinstance(codec, TermCodec) and collective in ("all_reduce", "code_reduce"):
        codec.term_nbytes(0, world)


def simulate(
    codec: Codec, vectors: Sequence[Tensor], key: Key, collective: str | None = None
) -> Tensor:
    """The mean that workers holding `vectors` agree on (float32, flat).

    Sums of `all_reduce` are taken in the order of ranks; a backend may add floats in another
    order and differ in the last bit.
    """
    collective = collective or choose(codec, len(vectors))
    check(codec, collective, len(vectors))
    vectors = [vector.detach().reshape(-1) for vector in vectors]
    keys = [key.of(rank=rank) for rank in range(len(vectors))]
    if isinstance(codec, TermCodec) and collective in ("all_reduce", "code_reduce"):
        return _simulate_terms(codec, vectors, keys)
    world = len(vectors)
    mean = torch.empty(vectors[0].numel(), dtype=torch.float32)
    payloads = [codec.encode(x, own, world=world) for x, own in zip(vectors, keys, strict=True)]
    codec.aggregate_into(payloads, mean, keys)
    if collective == "two_shot":
        again = key.of(rank=0, hop=1)
        mean = codec.decode(codec.encode(mean, again), mean.numel(), again)
    return mean


def _simulate_terms(codec: TermCodec, vectors: Sequence[Tensor], keys: Sequence[Key]) -> Tensor:
    world, numel = len(vectors), vectors[0].numel()
    statistics = torch.stack([codec.statistics(vector) for vector in vectors])
    shared = statistics.amax(0) if codec.statistics_op == "max" else statistics.sum(0)
    terms = []
    for vector, own in zip(vectors, keys, strict=True):
        terms.append(torch.empty(codec.term_nbytes(numel, world), dtype=torch.uint8))
        codec.encode_term(vector, terms[-1], own, 0, world=world, shared=shared)
    if isinstance(codec, SummableCodec):
        for term in terms[1:]:
            terms[0].view(codec.sum_dtype).add_(term.view(codec.sum_dtype))
    elif isinstance(codec, ReducibleCodec):
        _reduce_tree(codec, terms, keys[0], 0)
    mean = torch.empty(numel, dtype=torch.float32)
    codec.decode_sum(terms[0], mean, keys[0], 0, world=world, shared=shared)
    return mean


def _reduce_tree(codec: ReducibleCodec, terms: Sequence[Tensor], key: Key, offset: int) -> None:
    """Add up `terms` into the first one: neighbours, then neighbours of those, and so on."""
    stride = 1
    while stride < len(terms):
        for rank in range(stride, len(terms), 2 * stride):
            coins = key.of(rank=rank, hop=2)
            codec.reduce_term(terms[rank - stride], terms[rank], coins, offset)
        stride *= 2


Rates = dict[int, float]


def all_reduce(link: Link, codec: Codec, parts: Sequence[Part], key: Key) -> Rates:
    """Sum terms in the network."""
    assert isinstance(codec, SummableCodec)
    sum_terms(link, [codec] * len(parts), parts, key)
    return {}


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


def _agree(link: Link, codecs: Sequence[TermCodec], slices: Sequence[Slice]) -> Sequence[Tensor]:
    """The statistics of each slice, combined over the workers in one message."""
    with link.account.timed("encode"):
        pairs = zip(codecs, slices, strict=True)
        own = [codec.statistics(_source(link, piece)) for codec, piece in pairs]
        joined = torch.cat(own)
    if joined.numel():
        link.all_reduce(joined, codecs[0].statistics_op)
        link.account.message(0, 4 * joined.numel())
    return torch.split(joined, [statistics.numel() for statistics in own])


def all_gather(link: Link, codec: Codec, parts: Sequence[Part], key: Key) -> Rates:
    """Send every payload to everyone."""
    slices = [Slice(part, 0, part.values.numel()) for part in parts]
    message, sizes = _encode(link, codec, slices, key)
    _account_messages(link, slices, sizes)
    messages, all_sizes = _gather(link, codec, message, sizes)
    payloads = [_payloads(m, s) for m, s in zip(messages, all_sizes, strict=True)]
    own = _payloads(message, sizes)
    rates: Rates = {}
    with link.account.timed("decode"):
        for i, piece in enumerate(slices):
            keys = [key.of(tensor=piece.part.tensor, rank=rank) for rank in range(link.size)]
            source, result = _source(link, piece), _target(link, piece)
            theirs = [row[i] for row in payloads]
            codec.aggregate_into(theirs, result, keys)
            _settle(codec, piece, source, result, own[i], keys[link.rank])
            if codec.num_dependent(link.size):
                rates[piece.part.tensor] = codec.failure_rate(theirs, piece.numel, keys)
    return rates


def two_shot(link: Link, codec: Codec, parts: Sequence[Part], key: Key) -> Rates:
    """Send payloads of each shard to its owner, and the owner's mean to everyone."""
    shards = cut(parts, codec.grain, link.size)
    everything = [piece for shard in shards for piece in shard]
    message, sizes = _encode(link, codec, everything, key)
    _account_messages(link, everything, sizes)
    mine = shards[link.rank]
    all_sizes = [sizes] * link.size if codec.fixed_size else link.gather_sizes(sizes)
    received = _exchange(link, message, all_sizes, [len(shard) for shard in shards])

    mean = link.floats("mean", sum(piece.numel for piece in mine))
    means = torch.split(mean, [piece.numel for piece in mine])
    rates = []
    with link.account.timed("decode"):
        for i, (piece, out) in enumerate(zip(mine, means, strict=True)):
            keys = [key.of(tensor=piece.part.tensor, rank=rank) for rank in range(link.size)]
            theirs = [row[i] for row in received]
            codec.aggregate_into(theirs, out, keys, piece.start)
            rates.append(codec.failure_rate(theirs, piece.numel, keys, piece.start))

    again = key.of(rank=0, hop=1)
    own = _payloads(message, sizes)
    shard_message, shard_sizes = _encode(link, codec, mine, again, sources=means, room="reply")
    reply_sizes = _shard_sizes(link, codec, shard_sizes, shards)
    replies = _gather_shards(link, shard_message, reply_sizes)
    with link.account.timed("decode"):
        for piece, payload, sent in zip(everything, replies, own, strict=True):
            source, result = _source(link, piece), _target(link, piece)
            codec.decode_into(payload, result, again.of(tensor=piece.part.tensor), piece.start)
            own_key = key.of(tensor=piece.part.tensor, rank=link.rank)
            _settle(codec, piece, source, result, sent, own_key)
    return _gather_rates(link, rates, shards) if codec.num_dependent(link.size) else {}


def code_reduce(link: Link, codec: Codec, parts: Sequence[Part], key: Key) -> Rates:
    """Send terms of each shard to its owner, who adds them up, and their total to everyone."""
    assert isinstance(codec, ReducibleCodec)
    shards = cut(parts, codec.grain, link.size)
    pieces = [piece for shard in shards for piece in shard]
    shared = _agree(link, [codec] * len(pieces), pieces)
    all_sizes = [[codec.term_nbytes(p.numel, link.size) for p in shard] for shard in shards]
    terms, message = _encode_terms(link, codec, pieces, key, shared)
    sizes = [term.numel() for term in terms]
    _account_messages(link, pieces, sizes)
    counts = [len(shard) for shard in shards]
    received = _exchange(link, message, [sizes] * link.size, counts)
    reply = _reduce_shard(link, codec, shards[link.rank], received, key)
    totals = _gather_shards(link, reply, all_sizes)
    with link.account.timed("decode"):
        for piece, total, term, common in zip(pieces, totals, terms, shared, strict=True):
            own = key.of(tensor=piece.part.tensor, rank=link.rank)
            at, world = piece.start, link.size
            source, result = _source(link, piece), _target(link, piece)
            codec.decode_sum(total, result, own, at, world=world, shared=common)
            if piece.residual is not None and _finite(result):
                residual = piece.residual.copy_(source)
                codec.subtract_term(term, residual, own, at, world=world, shared=common)
            _store(piece, result)
    return {}


def _encode_terms(
    link: Link, codec: TermCodec, pieces: Sequence[Slice], key: Key, shared: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """The terms of `pieces`, and the message that they lie in."""
    sizes = [codec.term_nbytes(piece.numel, link.size) for piece in pieces]
    message = link.room("send", _message_nbytes(sizes))
    terms = _payloads(message, sizes)
    with link.account.timed("encode"):
        for piece, term, common in zip(pieces, terms, shared, strict=True):
            own, source = key.of(tensor=piece.part.tensor, rank=link.rank), _source(link, piece)
            codec.encode_term(source, term, own, piece.start, world=link.size, shared=common)
    return terms, message


def _reduce_shard(
    link: Link, codec: ReducibleCodec, shard: list[Slice], received: list[list[Tensor]], key: Key
) -> Tensor:
    """A message of the totals of this worker's shard."""
    sizes = [term.numel() for term in received[0]]
    reply = link.room("reply", _message_nbytes(sizes))
    with link.account.timed("decode"):
        for i, (piece, total) in enumerate(zip(shard, _payloads(reply, sizes), strict=True)):
            terms = [row[i] for row in received]
            _reduce_tree(codec, terms, key.of(tensor=piece.part.tensor), piece.start)
            total.copy_(terms[0])
    return reply


COLLECTIVES = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "two_shot": two_shot,
    "code_reduce": code_reduce,
}


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
    rank = link.rank if key.hop == 0 else 0
    sizes, at = [], 0
    with link.account.timed("encode"):
        for i, piece in enumerate(slices):
            own = key.of(tensor=piece.part.tensor, rank=rank)
            source = _source(link, piece) if sources is None else sources[i]
            world = 1 if piece.part.alone or key.hop else link.size
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
    link: Link, message: Tensor, all_sizes: list[list[int]], counts: list[int]
) -> list[list[Tensor]]:
    """The first shot: for each rank, its payloads of the shard that this worker owns.

    `all_sizes` are those of every worker's payloads, `counts` how many there are in each shard.
    """
    ends = [sum(counts[: rank + 1]) for rank in range(link.size)]
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    mine = [row[spans[link.rank]] for row in all_sizes]
    out_nbytes = [_message_nbytes(row) for row in mine]
    in_nbytes = [_message_nbytes(all_sizes[link.rank][span]) for span in spans]
    received = link.room("receive", sum(out_nbytes))
    link.all_to_all(received, message, out_nbytes, in_nbytes)
    messages = torch.split(received, out_nbytes)
    return [_payloads(m, row) for m, row in zip(messages, mine, strict=True)]


def _gather_rates(link: Link, rates: list[float], shards: list[list[Slice]]) -> Rates:
    """The rates of all parameters, from those of the slices in each shard, sent as 2^-30ths."""
    most = max(len(shard) for shard in shards)
    rows = link.gather_sizes([round(rate * 2**30) for rate in rates] + [0] * (most - len(rates)))
    wrong: dict[int, list[float]] = {}
    for shard, row in zip(shards, rows, strict=True):
        for piece, rate in zip(shard, row, strict=False):
            sums = wrong.setdefault(piece.part.tensor, [0.0, 0.0])
            sums[0] += rate / 2**30 * piece.numel
            sums[1] += piece.numel
    return {tensor: failures / values for tensor, (failures, values) in wrong.items()}


def _shard_sizes(
    link: Link, codec: Codec, sizes: list[int], shards: list[list[Slice]]
) -> list[list[int]]:
    """The sizes of the payloads of every shard, of which this worker's are `sizes`."""
    if codec.fixed_size:
        return [[codec.max_nbytes(piece.numel) for piece in shard] for shard in shards]
    most = max(len(shard) for shard in shards)
    rows = link.gather_sizes(sizes + [0] * (most - len(sizes)))
    return [row[: len(shard)] for row, shard in zip(rows, shards, strict=True)]


def _gather_shards(link: Link, message: Tensor, all_sizes: list[list[int]]) -> list[Tensor]:
    """The second shot: the payloads of all shards, in order. Shards differ in length."""
    messages = _all_gather_uneven(link, message, [_message_nbytes(row) for row in all_sizes])
    return [
        payload
        for shard_message, row in zip(messages, all_sizes, strict=True)
        for payload in _payloads(shard_message, row)
    ]
