"""`code_reduce`: codes are added where they arrive, and their total decoded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gradwire.codec import Codec, ReducibleCodec
from gradwire.collectives.feedback import take
from gradwire.collectives.parts import Slice, cut
from gradwire.collectives.statistics import Job, agree
from gradwire.key import Key
from gradwire.transport.link import Link


def code_reduce(link: Link, codec: Codec, pieces: Sequence[Slice], key: Key) -> dict[int, float]:
    """Send codes of each shard to its owner, who adds them up, and their total to everyone.

    Two workers send each other all codes instead, and both add them up: one message, and no
    total on the wire.
    """
    assert isinstance(codec, ReducibleCodec)
    sums = sum_codes(link, codec, pieces, take(link, pieces), key)
    link.account.message(sum(piece.numel for piece in pieces), 0)
    with link.account.timed("decode"):
        for job, total, own in sums:
            job.settle(link, total, own)
    return {}


def sum_codes(
    link: Link,
    codec: ReducibleCodec,
    pieces: Sequence[Slice],
    inputs: Sequence[Tensor],
    key: Key,
) -> list[tuple[Job, Tensor, Tensor]]:
    """The total of the codes of `inputs`, which belong to `pieces`, and this worker's own codes.

    Each comes with the job that decodes both. They lie in scratch memory of `link`. The bytes are
    entered in its account, the values are not.
    """
    given = zip(pieces, inputs, agree(link, codec, inputs), strict=True)
    jobs = [_CodeJob(codec, link, *rest, key) for rest in given]
    sizes, total_sizes = _sizes(link, codec, pieces)
    message = link.room("send", sum(sizes))
    own = torch.split(message, sizes)
    with link.account.timed("encode"):
        for job, code in zip(jobs, own, strict=True):
            job.encode(code)
    link.account.message(0, message.nbytes)
    total = link.room("total", sum(total_sizes))
    if link.size == 2:
        rows = link.room("receive", 2 * message.nbytes).view(2, message.nbytes)
        rows[link.rank].copy_(message)
        with _turn(link, codec):
            link.share(list(rows))
        _add_up(link, codec, pieces, rows, total, key)
    else:
        _add_up_by_owners(link, codec, pieces, message, total, key)
    return list(zip(jobs, torch.split(total, total_sizes), own, strict=True))


def _add_up_by_owners(
    link: Link, codec: ReducibleCodec, pieces: Sequence[Slice], message: Tensor, total: Tensor,
    key: Key,
) -> None:  # fmt: skip
    """Each worker adds the codes of its shard, and all share their totals."""
    shards = cut(pieces, codec.grain, link.size)
    both = [_sizes(link, codec, shard) for shard in shards]
    sizes, total_sizes = [sum(codes) for codes, _ in both], [sum(totals) for _, totals in both]
    mine, totals = sizes[link.rank], torch.split(total, total_sizes)
    received = link.room("receive", link.size * mine)
    with _turn(link, codec):
        link.all_to_all(received, message, [mine] * link.size, sizes)
    rows = received.view(link.size, mine)
    _add_up(link, codec, shards[link.rank], rows, totals[link.rank], key)
    link.share(totals)


def _add_up(
    link: Link,
    codec: ReducibleCodec,
    pieces: Sequence[Slice],
    rows: Tensor,
    total: Tensor,
    key: Key,
) -> None:
    """Add the codes of `pieces`, of which every worker has sent a row."""
    sizes, total_sizes = _sizes(link, codec, pieces)
    totals = torch.split(total, total_sizes)
    with link.account.timed("decode"):
        for piece, codes, sums in zip(pieces, torch.split(rows, sizes, 1), totals, strict=True):
            own = key.of(tensor=piece.part.tensor)
            codec.add_codes(codes, sums, piece.numel, own, piece.start)


def _turn(link: Link, codec: ReducibleCodec) -> AbstractContextManager[None]:
    return link.in_turn() if codec.in_turn else nullcontext()


def _sizes(
    link: Link, codec: ReducibleCodec, pieces: Sequence[Slice]
) -> tuple[list[int], list[int]]:
    """Bytes of the codes of each piece, and of their totals."""
    return (
        [codec.code_nbytes(piece.numel, link.size) for piece in pieces],
        [codec.total_nbytes(piece.numel, link.size) for piece in pieces],
    )


class _CodeJob(Job):
    """A slice of which codes are sent."""

    def __init__(self, codec: ReducibleCodec, *rest: Any) -> None:
        super().__init__(*rest)
        self.codec = codec

    def encode(self, out: Tensor) -> None:
        self.codec.encode_code(self.source, out, self.key, self.at, **self.among)

    def decode(self, total: Tensor, out: Tensor) -> None:
        self.codec.decode_total(total, out, self.key, self.at, **self.among)

    def subtract(self, own: Tensor, out: Tensor) -> None:
        self.codec.subtract_code(own, out, self.key, self.at, **self.among)
