"""What `attach` asks of a codec, and of the settings of all ranks together."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from gradwire.codec import Codec
from gradwire.link import Link


def check_codec(codec: object) -> None:
    """Refuse what is no codec."""
    if not isinstance(codec, Codec):
        raise TypeError(
            f"`codec` must be a codec such as `gw.QSGD(bits=4)`, got {codec!r}; "
            '`gw.parse("qsgd:bits=4")` makes one from a string.'
        )


def check_agreement(settings: dict[str, Any], link: Link) -> None:
    """Every rank must attach with the same settings; name the one that does not, and what."""
    everyone: list[Any] = [None] * link.size
    dist.all_gather_object(everyone, settings, group=link.group)
    for name in settings:
        for rank, theirs in enumerate(everyone):
            if theirs[name] != everyone[0][name]:
                raise ValueError(
                    f"ranks attach with different settings: `{name}` is {everyone[0][name]!r} on "
                    f"rank 0 and {theirs[name]!r} on rank {rank}; they must be the same."
                )
