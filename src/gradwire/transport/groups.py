"""Process groups of our own, with the members of another one.

`dist.new_group` names a group by counts of this process, and where the members have made different
numbers of groups they wait for each other under different names. Here the members agree on the name
first, and meet in the store of the group they have in common. PyTorch has no public call for that,
so what is private is used in this file and nowhere else.
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

_leaving = threading.Lock()
"""PyTorch keeps its groups in plain dictionaries, and lanes leave theirs in their own threads."""


_CPU = torch.device("cpu")


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str | None:
    """What `group` sends tensors on `device` by: "gloo", "nccl" or another; None: nothing."""
    try:
        name: str = group._get_backend(device).name()
    except RuntimeError:
        return None
    return name


def same_members(
    group: dist.ProcessGroup, name: str, count: int, memory: torch.device = _CPU
) -> list[dist.ProcessGroup]:
    """`count` groups like `group`, with its timeout, that nobody else uses. All members call it.

    `name` must be the same on all of them, and that of no other groups. Messages will be in
    `memory`. NCCL connects when a group is first used, which is here.
    """
    made = [_same_members(group, f"{name}/{number}", memory) for number in range(count)]
    if memory.type == "cpu":
        dist.barrier(group)  # who left at once would cut off those who are still connecting
    else:
        for own in made:
            dist.barrier(own, device_ids=[memory.index])
    return made


def _same_members(group: dist.ProcessGroup, name: str, memory: torch.device) -> dist.ProcessGroup:
    members = [dist.get_global_rank(group, rank) for rank in range(group.size())]
    backend, _ = c10d._world.pg_map[group]
    own: dist.ProcessGroup
    own, _ = c10d._new_process_group_helper(
        len(members),
        group.rank(),
        members,
        backend if memory.type == "cpu" else backend_of(group, memory),
        group.get_group_store(),
        c10d.GroupName(name),
        timeout=group._get_backend(memory).options._timeout,
        group_desc="gradwire",
    )
    c10d._world.pg_group_ranks[own] = {rank: place for place, rank in enumerate(members)}
    return own


def leave(group: dist.ProcessGroup) -> None:
    """Close the connections of `group`; nothing happens if PyTorch has closed all groups before."""
    with _leaving:
        if group in c10d._world.pg_map:
            dist.destroy_process_group(group)
