"""Scratch memory of codecs, kept from call to call: steady training allocates nothing."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

_local = threading.local()


def room(name: str, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`numel` values of this thread's scratch memory called `name`; what they held is lost."""
    rooms: dict[tuple[str, torch.dtype, torch.device], Tensor]
    rooms = _local.__dict__.setdefault("rooms", {})
    found = rooms.get((name, dtype, device))
    if found is None or found.numel() < numel:
        found = rooms[name, dtype, device] = torch.empty(numel, dtype=dtype, device=device)
    return found[:numel]


def held_nbytes() -> int:
    """Bytes of scratch memory that this thread has."""
    return sum(found.nbytes for found in _local.__dict__.get("rooms", {}).values())
