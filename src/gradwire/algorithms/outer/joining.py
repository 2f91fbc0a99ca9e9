"""Workers that begin anew, with nothing, get the state of those that have one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from gradwire.reduction.checkpoint import pack, unpack
from gradwire.transport.link import Link


def state_from_others(link: Link, state: dict[str, Any] | None, step: int) -> dict[str, Any] | None:
    """What the first worker that has a `state` has of it in common with all; None if none has.

    All workers call it, with the inner step they stand at.
    """
    everyone: list[Any] = [None] * link.size
    dist.all_gather_object(everyone, None if state is None else step, group=link.group)
    known = {rank: theirs for rank, theirs in enumerate(everyone) if theirs is not None}
    if not known:
        return None
    if len(set(known.values())) > 1:
        steps = ", ".join(f"rank {rank} at {theirs}" for rank, theirs in known.items())
        raise ValueError(
            f"workers must join at one inner step, got {steps}; load the last checkpoint that all "
            "of them have."
        )
    if len(known) == link.size:
        return state
    return _shared(link, state, source=min(known))


def _shared(link: Link, state: dict[str, Any] | None, source: int) -> dict[str, Any]:
    data = pack({}) if state is None else pack(_common(state))
    size = torch.tensor(len(data))
    link.broadcast(size, source)
    message = torch.empty(int(size), dtype=torch.uint8)
    if link.rank == source:
        message.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    link.broadcast(message, source)
    return unpack(message.numpy().tobytes())


def _common(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith("rank")}
