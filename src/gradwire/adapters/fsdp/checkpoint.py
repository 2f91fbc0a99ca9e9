"""The state of an attachment to FSDP2, for checkpoints.

As that of DDP (`reduction/checkpoint.py`) it is made for `torch.save` and for
`torch.distributed.checkpoint`, which writes one of the values that ranks have under the same key.
So what belongs to one rank is under a key of that rank::

    world, steps, scale          equal on every rank; steps by module
    rank1: residuals, between    of rank 1; residuals of both legs by module

Residuals are there from the start, as zeros, because DCP loads only what a fresh attachment has.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Owed = Mapping[str, Mapping[str, Tensor]]
"""The residuals of each leg by module."""


def save(steps: Mapping[str, int], scale: float, owed: Owed) -> dict[str, Any]:
    """This rank's state; `scale` is the loss scale that residuals are in."""
    residuals = {leg: {n: r.clone() for n, r in by_name.items()} for leg, by_name in owed.items()}
    return {
        "world": dist.get_world_size(),
        "steps": dict(steps),
        "scale": scale,
        f"rank{dist.get_rank()}": residuals,
    }


def load(state: Mapping[str, Any], steps: dict[str, int], owed: Owed) -> None:
    """Fill `steps` and `owed` from what `save` returned. If it does not fit, nothing is filled."""
    if set(state["steps"]) != set(steps):
        odd = sorted(set(state["steps"]) ^ set(steps))
        raise ValueError(f"the state and the module differ in what they have: {odd}.")
    rank, world = dist.get_rank(), dist.get_world_size()
    if state["world"] == world:
        own = _own(state, rank)
        for leg, by_name in owed.items():
            _check(leg, own[leg], by_name)
    else:
        own = {leg: {} for leg in owed}
        if rank == 0:
            warnings.warn(
                f"the state is of {state['world']} workers and there are {world} now: steps are "
                "kept, residuals start anew.",
                stacklevel=3,
            )
    steps.update(state["steps"])
    for leg, by_name in owed.items():
        for name, residual in by_name.items():
            residual.copy_(own[leg].get(name, torch.zeros(())))


def _own(state: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    if f"rank{rank}" not in state:
        ranks = ", ".join(key for key in state if key.startswith("rank"))
        raise ValueError(
            f"the state is of {ranks} of {state['world']}, but this worker is rank{rank}; every "
            "rank must save and load a state of its own."
        )
    own: Mapping[str, Any] = state[f"rank{rank}"]
    return own


def _check(leg: str, theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> None:
    if set(theirs) != set(ours):
        raise ValueError(
            f"the state has `{leg}` of the modules {sorted(theirs)}, but this attachment keeps "
            f"those of {sorted(ours)}; attach with the same codec, `error_feedback`, `min_numel` "
            "and `replicas`."
        )
    for name, residual in ours.items():
        if theirs[name].shape != residual.shape:
            raise ValueError(
                f"`{leg}` of '{name}' must have the shape {tuple(residual.shape)}, got "
                f"{tuple(theirs[name].shape)}; the state is of another model, or of one whose "
                "trained parameters were others."
            )
