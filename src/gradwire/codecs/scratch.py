"""Scratch memory of codecs, kept from call to call: steady training allocates nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_Rooms = dict[tuple[str, torch.dtype, torch.device], Tensor]
_local = threading.local()


def room(name: str, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`numel` values of this thread's scratch memory called `name`; what they held is lost."""
    rooms = _rooms()
    found = rooms.get((name, dtype, device))
    if found is None or found.numel() < numel:
        found = rooms[name, dtype, device] = torch.empty(numel, dtype=dtype, device=device)
    return found[:numel]


@contextmanager
def temporary() -> Iterator[None]:
    """Let go of all scratch memory that is allocated in here.

    How much that is may be up to whoever has written a message.
    """
    before = _rooms()
    _local.rooms = dict(before)
    try:
        yield
    finally:
        _local.rooms = before


def free() -> None:
    """Let go of all scratch memory that this thread has."""
    _rooms().clear()


def held_nbytes() -> int:
    """Bytes of scratch memory that this thread has."""
    return sum(found.nbytes for found in _rooms().values())


def _rooms() -> _Rooms:
    rooms: _Rooms = _local.__dict__.setdefault("rooms", {})
    return rooms
