"""`all_reduce`: terms are added by the network, and their sum decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.codec import Codec, SummableCodec
from gradwire.collectives.feedback import take
from gradwire.collectives.parts import Slice
from gradwire.collectives.statistics import Job, agree
from gradwire.key import Key
from gradwire.transport.link import Link


def all_reduce(link: Link, codec: Codec, pieces: Sequence[Slice], key: Key) -> dict[int, float]:
    """Sum terms in the network."""
    assert isinstance(codec, SummableCodec)
    inputs = take(link, pieces)
    given = zip(pieces, inputs, agree(link, codec, inputs), strict=True)
    jobs = [_TermJob(codec, link, *rest, key) for rest in given]
    sizes = [codec.term_nbytes(piece.numel, link.size) for piece in pieces]
    message = link.room("send", sum(sizes))
    terms = torch.split(message, sizes)
    with link.account.timed("encode"):
        for job, term in zip(jobs, terms, strict=True):
            job.encode(term)
        feedback = any(piece.is_followed for piece in pieces)
        kept = link.room("own", sum(sizes) if feedback else 0)
        kept.copy_(message[: kept.numel()])  # the sum takes the place of the terms
    link.account.message(sum(piece.numel for piece in pieces), sum(sizes))
    with link.in_turn():
        link.all_reduce(message.view(codec.sum_dtype))
    with link.account.timed("decode"):
        own = torch.split(kept, sizes) if feedback else terms
        for job, total, term in zip(jobs, terms, own, strict=True):
            job.settle(link, total, term)
    return {}


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
