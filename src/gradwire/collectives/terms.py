"""`all_reduce` and `code_reduce`: terms are combined on their way, and their total decoded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import Codec, Key, ReducibleCodec, SummableCodec, TermCodec
from gradwire.collectives.messages import exchange, gather, message_nbytes, payloads_of
from gradwire.collectives.settling import settle, sources, target
from gradwire.link import Link
from gradwire.parts import Slice, cut


def all_reduce(link: Link, codec: Codec, pieces: Sequence[Slice], key: Key) -> dict[int, float]:
    """Sum terms in the network."""
    assert isinstance(codec, SummableCodec)
    sum_terms(link, [codec] * len(pieces), pieces, key)
    return {}


def sum_terms(
    link: Link, codecs: Sequence[SummableCodec], pieces: Sequence[Slice], key: Key
) -> list[tuple[float, ...]]:
    """All-reduce with a codec for each slice, in one message, and what each sum remarks.

    The codecs must have one `sum_dtype` and one `statistics_op`.
    """
    jobs = _prepare(link, codecs, pieces, key)
    sizes = [job.nbytes for job in jobs]
    message = link.room("send", sum(sizes))
    terms = torch.split(message, sizes)
    with link.account.timed("encode"):
        for job, term in zip(jobs, terms, strict=True):
            job.encode(term)
        feedback = any(piece.residual is not None for piece in pieces)
        kept = link.room("own", sum(sizes) if feedback else 0)
        kept.copy_(message[: kept.numel()])  # the sum takes the place of the terms
    link.account.message(sum(piece.numel for piece in pieces), sum(sizes))
    link.all_reduce_in_turn(message.view(codecs[0].sum_dtype))
    with link.account.timed("decode"):
        remarks = [
            job.codec.remark(total, link.size) for job, total in zip(jobs, terms, strict=True)
        ]
        own = torch.split(kept, sizes) if feedback else terms
        for job, total, term in zip(jobs, terms, own, strict=True):
            job.settle(total, term)
    return remarks


def code_reduce(link: Link, codec: Codec, pieces: Sequence[Slice], key: Key) -> dict[int, float]:
    """Send terms of each shard to its owner, who adds them up, and their total to everyone."""
    assert isinstance(codec, ReducibleCodec)
    shards = cut(pieces, codec.grain, link.size)
    everything = [piece for shard in shards for piece in shard]
    jobs = _prepare(link, [codec] * len(everything), everything, key)
    sizes = [job.nbytes for job in jobs]
    message = link.room("send", message_nbytes(sizes))
    terms = payloads_of(message, sizes)
    with link.account.timed("encode"):
        for job, term in zip(jobs, terms, strict=True):
            job.encode(term)
    link.account.message(sum(piece.numel for piece in everything), sum(sizes))
    received = exchange(link, message, [sizes] * link.size, [len(shard) for shard in shards])
    reply = _reduce_shard(link, codec, shards[link.rank], received, key)
    reply_sizes = [[codec.term_nbytes(p.numel, link.size) for p in shard] for shard in shards]
    totals = [total for row in gather(link, reply, reply_sizes) for total in row]
    with link.account.timed("decode"):
        for job, total, term in zip(jobs, totals, terms, strict=True):
            job.settle(total, term)
    return {}


def reduce_tree(codec: ReducibleCodec, terms: Sequence[Tensor], key: Key, offset: int) -> None:
    """Add up `terms` into the first one: neighbours, then neighbours of those, and so on."""
    stride = 1
    while stride < len(terms):
        for rank in range(stride, len(terms), 2 * stride):
            coins = key.of(rank=rank, hop=2)
            codec.reduce_term(terms[rank - stride], terms[rank], coins, offset)
        stride *= 2


class _Job:
    """One slice and all that its term depends on."""

    def __init__(
        self, link: Link, codec: TermCodec, piece: Slice, source: Tensor, shared: Tensor, key: Key
    ) -> None:
        self.link, self.codec, self.piece = link, codec, piece
        self.source, self.shared = source, shared
        self.key = key.of(tensor=piece.part.tensor, rank=link.rank)
        self.nbytes = codec.term_nbytes(piece.numel, link.size)

    def encode(self, term: Tensor) -> None:
        self.codec.encode_term(
            self.source, term, self.key, self.piece.start, world=self.link.size, shared=self.shared
        )

    def settle(self, total: Tensor, term: Tensor) -> None:
        """Decode the total; `term` is this worker's own."""
        at, world = self.piece.start, self.link.size
        result = target(self.link, self.piece)
        self.codec.decode_sum(total, result, self.key, at, world=world, shared=self.shared)

        def subtract(out: Tensor) -> None:
            self.codec.subtract_term(term, out, self.key, at, world=world, shared=self.shared)

        settle(self.piece, self.source, result, subtract)


def _prepare(
    link: Link, codecs: Sequence[TermCodec], pieces: Sequence[Slice], key: Key
) -> list[_Job]:
    """Agree on the statistics of each slice, combined over the workers in one message."""
    with link.account.timed("encode"):
        inputs = sources(link, pieces)
        own = [codec.statistics(x) for codec, x in zip(codecs, inputs, strict=True)]
        joined = torch.cat(own)
    if joined.numel():
        link.all_reduce(joined, codecs[0].statistics_op)
        link.account.message(0, 4 * joined.numel())
    shared = torch.split(joined, [statistics.numel() for statistics in own])
    return [
        _Job(link, codec, piece, source, common, key)
        for codec, piece, source, common in zip(codecs, pieces, inputs, shared, strict=True)
    ]


def _reduce_shard(
    link: Link,
    codec: ReducibleCodec,
    shard: Sequence[Slice],
    received: list[list[Tensor]],
    key: Key,
) -> Tensor:
    """A message of the totals of this worker's shard."""
    sizes = [term.numel() for term in received[0]]
    reply = link.room("reply", message_nbytes(sizes))
    with link.account.timed("decode"):
        for i, (piece, total) in enumerate(zip(shard, payloads_of(reply, sizes), strict=True)):
            terms = [row[i] for row in received]
            reduce_tree(codec, terms, key.of(tensor=piece.part.tensor), piece.start)
            total.copy_(terms[0])
    return reply
