"""Messages: payloads one after the other, and how they get to the workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.transport.link import Link

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
