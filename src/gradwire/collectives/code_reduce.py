"""`code_reduce`: codes are added where they arrive, and their total decoded.

It is a `two_shot` (an `all_gather` between two) whose owners add codes, in the order of ranks. It
sends less than `all_reduce`, whose codes have room for the total from the start, and adds floats
alike wherever they lie in the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from gradwire.codec import Codec, SummableCodec
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.feedback import Own, vectors_of
from gradwire.collectives.parts import Slice, cut
from gradwire.collectives.sums import (
    Sum,
    agree,
    combined,
    settle_all,
    simulate_sum,
    sources,
    summable,
)
from gradwire.key import Key
from gradwire.transport.link import Link


class CodeReduce(Collective):
    """Send codes of each shard to its owner, who adds them up, and their total to everyone."""

    name = "code_reduce"

    def check(self, codec: Codec, world: int) -> None:
        if not isinstance(codec, SummableCodec):
            raise TypeError(
                f"payloads of {codec!r} cannot be added as codes; use `two_shot`, or a codec that "
                "can, such as `GlobalQSGD` or `Cast`."
            )
        codec.adder(world)

    def message_nbytes(self, codec: Codec, numel: int, world: int) -> int:
        return summable(codec).adder(world).code_nbytes(numel)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        vectors = vectors_of(link, pieces)
        sums = sum_codes(link, vectors, sources(link, vectors), key)
        link.account.message(sum(piece.numel for piece in pieces), 0)
        settle_all(link, sums)
        return []

    def simulate(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> Tensor:
        shared = combined(summable(codec), vectors)
        return simulate_sum(summable(codec).adder(len(vectors), shared), vectors, key)


def sum_codes(link: Link, vectors: Sequence[Own], inputs: Sequence[Tensor], key: Key) -> list[Sum]:
    """The total of the codes of `inputs`, which belong to `vectors`, and this worker's own.

    They lie in scratch memory of `link`. The bytes are entered in its account, the values are not.
    Two workers send each other all codes, and both add them up: one message, and no total on the
    wire.
    """
    shared, pieces = agree(link, vectors, inputs), [each.piece for each in vectors]
    sizes, total_sizes = _sizes(link, pieces)
    message, total = link.room("send", sum(sizes)), link.room("total", sum(total_sizes))
    rows = zip(
        vectors, shared, torch.split(total, total_sizes), torch.split(message, sizes), strict=True
    )
    sums = [
        Sum(
            vector, summable(vector.piece.codec).adder(link.size, agreed),
            key.of(tensor=vector.piece.part.tensor, rank=link.rank), of_all, own,
        )
        for vector, agreed, of_all, own in rows
    ]  # fmt: skip
    with link.account.timed("encode"):
        for each, source in zip(sums, inputs, strict=True):
            each.encode(source)
    link.account.message(0, message.nbytes)
    add = _add_between_two if link.size == 2 else _add_by_owners
    add(link, pieces, message, total, key)
    return sums


def _add_between_two(
    link: Link, pieces: Sequence[Slice], message: Tensor, total: Tensor, key: Key
) -> None:
    rows = link.room("receive", 2 * message.nbytes).view(2, message.nbytes)
    rows[link.rank].copy_(message)
    with _turn(link, pieces):
        link.share(list(rows))
    _add_up(link, pieces, rows, total, key)


def _add_by_owners(
    link: Link, pieces: Sequence[Slice], message: Tensor, total: Tensor, key: Key
) -> None:
    """Each worker adds the codes of its shard, and all share their totals."""
    shards = cut(pieces, link.size)
    both = [_sizes(link, shard) for shard in shards]
    sizes, total_sizes = [sum(codes) for codes, _ in both], [sum(totals) for _, totals in both]
    mine, totals = sizes[link.rank], torch.split(total, total_sizes)
    received = link.room("receive", link.size * mine)
    with _turn(link, pieces):
        link.all_to_all(received, message, [mine] * link.size, sizes)
    _add_up(link, shards[link.rank], received.view(link.size, mine), totals[link.rank], key)
    link.share(totals)


def _add_up(link: Link, pieces: Sequence[Slice], rows: Tensor, total: Tensor, key: Key) -> None:
    """Add the codes of `pieces`, of which every worker has sent a row."""
    sizes, total_sizes = _sizes(link, pieces)
    totals = torch.split(total, total_sizes)
    with link.account.timed("decode"):
        for piece, codes, of_all in zip(pieces, torch.split(rows, sizes, 1), totals, strict=True):
            adder, own = summable(piece.codec).adder(link.size), key.of(tensor=piece.part.tensor)
            adder.add(codes, of_all, piece.numel, own, piece.start)


def _turn(link: Link, pieces: Sequence[Slice]) -> AbstractContextManager[None]:
    in_turn = any(summable(piece.codec).adder(link.size).in_turn for piece in pieces)
    return link.in_turn() if in_turn else nullcontext()


def _sizes(link: Link, pieces: Sequence[Slice]) -> tuple[list[int], list[int]]:
    """Bytes of the codes of each piece, and of their totals."""
    adders = [summable(piece.codec).adder(link.size) for piece in pieces]
    pairs = list(zip(adders, [piece.numel for piece in pieces], strict=True))
    return [a.code_nbytes(n) for a, n in pairs], [a.total_nbytes(n) for a, n in pairs]
