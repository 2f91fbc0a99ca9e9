"""What the frameworks have in common: when to attach, and a file of state for every rank."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.adapters.attach import attach
from gradwire.adapters.handle import Handle


def attach_if_many(module: nn.Module, codec: Any, **options: Any) -> Handle | None:
    """`gw.attach`, or a warning and None where there is one worker and nothing is exchanged.

    A framework's own module around an FSDP2 module will do.
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        handle: Handle = attach(_parallel(module), codec, **options)
        return handle
    warnings.warn(
        f"{codec} is not attached: there is one worker, which exchanges no gradients.", stacklevel=3
    )
    return None


def _parallel(module: nn.Module) -> Any:
    """What to attach to: `module`, or the FSDP2 module that is all that is parallel in it."""
    if isinstance(module, DistributedDataParallel):
        return module
    from torch.distributed.fsdp import FSDPModule  # slow to import

    found = [each for each in module.modules() if isinstance(each, FSDPModule)]
    outer = [each for each in found[:1] if set(found) <= set(each.modules())]
    return outer[0] if outer else module


def save_to(folder: str | Path, handle: Handle, name: str = "gradwire") -> None:
    """Write this rank's state into `folder`, next to that of the others. Call it on every rank."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(handle.state_dict(), _path(folder, name, dist.get_rank()))


def load_from(folder: str | Path, handle: Handle, name: str = "gradwire") -> None:
    """Go on from what `save_to` wrote. Call it on every rank.

    A rank that did not exist then takes up the state of rank 0, of which `load_state_dict` keeps
    what all ranks share. Either every rank finds a state or none does; then rank 0 warns.
    """
    own, first = (_path(folder, name, rank) for rank in (dist.get_rank(), 0))
    path = own if own.is_file() else first
    if _all_find(path):
        handle.load_state_dict(torch.load(path, weights_only=True))
    elif dist.get_rank() == 0:
        warnings.warn(
            f"{folder} holds no state of gradwire: residuals start at zero, and what a codec has "
            "learned is learned anew.",
            stacklevel=3,
        )


def _path(folder: str | Path, name: str, rank: int) -> Path:
    return Path(folder) / f"{name}_{rank}.pt"


def _all_find(path: Path) -> bool:
    """Do all ranks have a state? Random streams would part if some went on and others began."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, path.is_file())
    if any(found) and not all(found):
        missing = [rank for rank, has in enumerate(found) if not has]
        raise FileNotFoundError(
            f"ranks {missing} find no state of gradwire in {path.parent}, but others do; copy the "
            "files of all ranks there, or remove them on all."
        )
    return all(found)
