"""`all_reduce`: terms are added by the network, and their sum decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.codec import Codec, Key, SummableCodec
from gradwire.collectives.agreeing import Job, agree
from gradwire.link import Link
from gradwire.parts import Slice


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
    inputs, shared = agree(link, codecs, pieces)
    given = zip(codecs, pieces, inputs, shared, strict=True)
    jobs = [_TermJob(codec, link, *rest, key) for codec, *rest in given]
    sizes = [c.term_nbytes(p.numel, link.size) for c, p in zip(codecs, pieces, strict=True)]
    message = link.room("send", sum(sizes))
    terms = torch.split(message, sizes)
    with link.account.timed("encode"):
        for job, term in zip(jobs, terms, strict=True):
            job.encode(term)
        feedback = any(piece.is_followed for piece in pieces)
        kept = link.room("own", sum(sizes) if feedback else 0)
        kept.copy_(message[: kept.numel()])  # the sum takes the place of the terms
    link.account.message(sum(piece.numel for piece in pieces), sum(sizes))
    link.all_reduce_in_turn(message.view(codecs[0].sum_dtype))
    with link.account.timed("decode"):
        remarks = [
            codec.remark(total, link.size) for codec, total in zip(codecs, terms, strict=True)
        ]
        own = torch.split(kept, sizes) if feedback else terms
        for job, total, term in zip(jobs, terms, own, strict=True):
            job.settle(link, total, term)
    return remarks


class _TermJob(Job):
    """A slice of which a term is sent."""

    def __init__(self, codec: SummableCodec, *rest: Any) -> None:
        super().__init__(*rest)
        self.codec = codec

    def encode(self, out: Tensor) -> None:
        self.codec.encode_term(self.source, out, self.key, self.at, **self.among)

    def decode(self, total: Tensor, out: Tensor) -> None:
        self.codec.decode_sum(total, out, self.key, self.at, **self.among)

    def subtract(self, own: Tensor, out: Tensor) -> None:
        self.codec.subtract_term(own, out, self.key, self.at, **self.among)
