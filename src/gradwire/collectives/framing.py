"""Messages: payloads one after the other, and how they get to the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradwire.codec import Seen
from gradwire.collectives.parts import Slice
from gradwire.key import Key
from gradwire.transport.link import Link

Encoder = Callable[[Tensor, Key], int]
"""Writes a payload; its size in bytes."""
ALIGN = 8
"""Payloads start at multiples of this many bytes, so that they can hold any type."""


def aligned(nbytes: int) -> int:
    """The room that a payload of `nbytes` bytes takes in a message."""
    return -(-nbytes // ALIGN) * ALIGN


def message_nbytes(sizes: Sequence[int]) -> int:
    """The size of a message of payloads of these sizes."""
    return sum(aligned(size) for size in sizes)


def payloads_of(message: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The payloads of a message."""
    payloads, at = [], 0
    for size in sizes:
        payloads.append(message[at : at + size])
        at += aligned(size)
    return payloads


def encoders(pieces: Sequence[Slice], inputs: Sequence[Tensor]) -> list[Encoder]:
    """What encodes these vectors, which take the place of `pieces`."""
    pairs = zip(pieces, inputs, strict=True)
    return [partial(each.codec.encode_into, x, offset=each.start) for each, x in pairs]


def encode_all(
    link: Link, pieces: Sequence[Slice], encoders: Sequence[Encoder], key: Key, *,
    room: str = "send",
) -> tuple[Tensor, list[int]]:  # fmt: skip
    """One message of the payloads of `pieces`, and their sizes."""
    out = link.room(room, sum(aligned(piece.codec.max_nbytes(piece.numel)) for piece in pieces))
    sizes, at = [], 0
    with link.account.timed("encode"):
        for piece, encode in zip(pieces, encoders, strict=True):
            sizes.append(encode(out[at:], key.of(tensor=piece.part.tensor)))
            at += aligned(sizes[-1])
    return out[:at], sizes


def announce(link: Link, pieces: Sequence[Slice], sizes: list[int]) -> list[list[int]]:
    """Enter this worker's message into the account; the sizes of every worker's payloads."""
    link.account.message(sum(piece.numel for piece in pieces), sum(sizes))
    fixed = all(piece.codec.fixed_size for piece in pieces)
    return [sizes] * link.size if fixed else link.gather_sizes(sizes)


def gather(link: Link, message: Tensor, all_sizes: Sequence[Sequence[int]]) -> list[list[Tensor]]:
    """The payloads of every worker's message."""
    nbytes = [message_nbytes(sizes) for sizes in all_sizes]
    rows = torch.split(link.room("receive", sum(nbytes)), nbytes)
    rows[link.rank].copy_(message)
    link.share(rows)
    return [payloads_of(row, sizes) for row, sizes in zip(rows, all_sizes, strict=True)]


def exchange(
    link: Link, message: Tensor, all_sizes: Sequence[Sequence[int]], counts: Sequence[int]
) -> list[list[Tensor]]:
    """For each rank, its payloads of the shard that this worker owns.

    `all_sizes` are those of every worker's payloads, `counts` how many there are in each shard.
    """
    ends = [sum(counts[: rank + 1]) for rank in range(link.size)]
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    mine = [row[spans[link.rank]] for row in all_sizes]
    out_nbytes = [message_nbytes(row) for row in mine]
    in_nbytes = [message_nbytes(all_sizes[link.rank][span]) for span in spans]
    received = link.room("receive", sum(out_nbytes))
    link.all_to_all(received, message, out_nbytes, in_nbytes)
    messages = torch.split(received, out_nbytes)
    return [payloads_of(m, row) for m, row in zip(messages, mine, strict=True)]


def gather_rows(link: Link, row: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Every worker's integers, `lengths` of them; those of this worker are `row`."""
    padded = [*row, *[0] * (max(lengths) - len(row))]
    rows = link.gather_sizes(padded)
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


@dataclass(frozen=True)
class Sent:
    """A payload of a piece, and the key it was encoded with."""

    piece: Slice
    payload: Tensor
    key: Key

    def decode(self, out: Tensor) -> None:
        """Write what it says."""
        self.piece.codec.decode_into(self.payload, out, self.key, self.piece.start)


def sent(pieces: Sequence[Slice], payloads: Sequence[Tensor], key: Key) -> list[Sent]:
    """The payloads of `pieces`, all encoded with `key`."""
    pairs = zip(pieces, payloads, strict=True)
    return [Sent(piece, payload, key.of(tensor=piece.part.tensor)) for piece, payload in pairs]


@dataclass(frozen=True)
class Received:
    """The payloads of a piece, one of each worker in the order of ranks."""

    piece: Slice
    payloads: Sequence[Tensor]
    key: Key

    def decode(self, out: Tensor) -> Seen:
        """Write their mean; what was seen of it."""
        ranks, tensor = range(len(self.payloads)), self.piece.part.tensor
        keys = [self.key.of(tensor=tensor, rank=rank) for rank in ranks]
        return self.piece.codec.mean_into(self.payloads, out, keys, self.piece.start)


def received(pieces: Sequence[Slice], rows: Sequence[Sequence[Tensor]], key: Key) -> list[Received]:
    """The payloads of `pieces`, of which each worker has sent a row."""
    columns = zip(*rows, strict=True) if pieces else ()
    return [Received(p, payloads, key) for p, payloads in zip(pieces, columns, strict=True)]


def average(link: Link, pieces: Sequence[Received]) -> tuple[Sequence[Tensor], list[Seen]]:
    """The mean of each (float32, in scratch memory of `link`), and what was seen of it."""
    numels = [each.piece.numel for each in pieces]
    means = torch.split(link.floats("mean", sum(numels)), numels)
    with link.account.timed("decode"):
        return means, [each.decode(mean) for each, mean in zip(pieces, means, strict=True)]
