"""`gw.probe(ddp, batch)`: the probe in a training script, with its own model and data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.lab.probe.run import Subject
from gradwire.lab.probe.run import probe as probe_subject
from gradwire.planner.profile import Profile

CODECS = ("none", "bf16", "qsgd:bits=4", "dqsg", "global-qsgd")


def probe(
    module: DistributedDataParallel,
    batch: Any,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    codecs: Sequence[str] = CODECS,
    seconds: float = 12.0,
) -> Profile:
    """Measure link, cores, codecs and this model; call it on every rank, before training.

    batch: what the module is called with: a tensor, a tuple of arguments, or a mapping of them.
    loss: makes a loss of what the module returns; by default the mean of its squares, or what it
        has under the name `loss`.

    A copy of the module is measured: weights, buffers and gradients stay as they are. The result
    has `to_json()`; what `gradwire plan --profile` reads is `json.dumps([profile.to_json()])`.
    """
    if not isinstance(module, DistributedDataParallel):
        raise TypeError(
            f"`probe` takes a DistributedDataParallel module, got {type(module).__name__}; wrap "
            "it first: `ddp = DistributedDataParallel(model)`."
        )
    if dist.get_world_size() < 2:
        raise ValueError("`probe` needs at least 2 workers to have a link, got 1.")
    make_loss = loss or _default_loss

    def make() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
        copied = copy.deepcopy(module.module)
        return copied, lambda ddp: make_loss(_called(ddp, batch))

    return probe_subject(
        Subject(make, type(module.module).__name__), codecs, seconds, lambda done, what: None
    )


def _called(ddp: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return ddp(**batch)
    return ddp(*batch) if isinstance(batch, tuple | list) else ddp(batch)


def _default_loss(found: Any) -> Tensor:
    given = getattr(found, "loss", None)
    if isinstance(found, Mapping):
        given = found.get("loss")
    if isinstance(given, Tensor):
        return given
    if isinstance(found, Tensor):
        return found.square().mean()
    raise TypeError(
        f"`probe` cannot tell the loss from what the module returns, {type(found).__name__}; say "
        "`loss=lambda output: ...`."
    )
