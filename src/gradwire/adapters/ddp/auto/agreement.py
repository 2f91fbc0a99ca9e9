"""How ranks come to know the same: means over all of them, and what the first one decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gradwire.transport.link import Link

Figures = Mapping[str, Sequence[float]]


def means(link: Link, figures: Figures) -> dict[str, list[float]]:
    """The figures of all ranks, averaged. All have the same names, and as many numbers of each."""
    flat = [number for name in sorted(figures) for number in figures[name]]
    total = torch.tensor(flat, dtype=torch.float64)
    link.all_reduce(total)
    rest = (total / link.size).tolist()
    found = {}
    for name in sorted(figures):
        found[name], rest = rest[: len(figures[name])], rest[len(figures[name]) :]
    return found


def from_first(link: Link, decide: Callable[[], Any]) -> Any:
    """What `decide` gives on rank 0, on every rank: plain data, as JSON has it."""
    message = bytearray(json.dumps(decide()).encode() if link.rank == 0 else b"")
    size = torch.tensor([len(message)])
    link.broadcast(size)
    data = torch.zeros(int(size), dtype=torch.uint8)
    if link.rank == 0:
        data.copy_(torch.frombuffer(message, dtype=torch.uint8))
    link.broadcast(data)
    return json.loads(data.numpy().tobytes())
