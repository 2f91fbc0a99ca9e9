"""What `attach` asks of the settings of all ranks together."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from gradwire.transport.link import Link


def check_agreement(settings: dict[str, Any], link: Link, offer: Any = None) -> list[Any]:
    """Every rank must attach with the same settings; name the one that does not, and what.

    What every rank offers comes back, in the order of ranks.
    """
    everyone: list[Any] = [None] * link.size
    dist.all_gather_object(everyone, (settings, offer), group=link.group)
    first, _ = everyone[0]
    for name in settings:
        for rank, (theirs, _) in enumerate(everyone):
            if theirs[name] != first[name]:
                raise ValueError(
                    f"ranks attach with different settings: `{name}` is {first[name]!r} on "
                    f"rank 0 and {theirs[name]!r} on rank {rank}; they must be the same."
                )
    return [theirs for _, theirs in everyone]
