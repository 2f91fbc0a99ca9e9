"""`attach`, the same call for every kind of data parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from gradwire.adapters.ddp.attach import attach as attach_ddp
from gradwire.adapters.ddp.handle import DDPHandle
from gradwire.adapters.handle import Handle
from gradwire.codec import Codec
from gradwire.codecs import as_codec
from gradwire.planner.auto.settings import Auto
from gradwire.reduction.policy import Policy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from gradwire.adapters.fsdp.handle import FSDPHandle

Hook = Callable[..., Any]

_OF_DDP: dict[str, Any] = {
    "policy": None, "collective": None, "lanes": 3, "chunk": None, "wrap": None,
}  # fmt: skip
_OF_FSDP: dict[str, Any] = {"replicas": None, "within": None, "weights": None}


@overload
def attach(
    module: DistributedDataParallel,
    codec: Codec | Auto | str,
    *,
    scaler: GradScaler | None = None,
    error_feedback: bool | None = None,
    min_numel: int | None = None,
    seed: int = 0,
    policy: Policy | None = None,
    collective: str | None = None,
    lanes: int = 3,
    chunk: int | None = None,
    wrap: Callable[[Hook], Hook] | None = None,
) -> DDPHandle: ...
@overload
def attach(
    module: FSDPModule,
    codec: Codec | str,
    *,
    scaler: GradScaler | None = None,
    error_feedback: bool | None = None,
    min_numel: int | None = None,
    seed: int = 0,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    within: Codec | str | None = None,
    weights: Codec | str | None = None,
) -> FSDPHandle: ...


def attach(
    module: DistributedDataParallel | FSDPModule,
    codec: Codec | Auto | str,
    *,
    scaler: GradScaler | None = None,
    error_feedback: bool | None = None,
    min_numel: int | None = None,
    seed: int = 0,
    policy: Policy | None = None,
    collective: str | None = None,
    lanes: int = 3,
    chunk: int | None = None,
    wrap: Callable[[Hook], Hook] | None = None,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    within: Codec | str | None = None,
    weights: Codec | str | None = None,
) -> Handle:
    """Reduce the gradients of `module` through `codec`. Call it once, on every rank alike.

    module: wrapped in `DistributedDataParallel`, or what `fully_shard` (FSDP2) was called on; of
        the latter all FSDP modules below it too, so attach after the last `fully_shard`.
    codec: such as `gw.QSGD(bits=4)`, or its spec, "qsgd:bits=4". Under DDP also "auto", which
        measures first, then chooses a codec for each layer, or none if nothing pays.
    scaler: what scales the loss, if anything does: residuals are in the same scale, and a copy of
        them undoes the steps that it skips.
    error_feedback: add what was lost in a step to the next; by default for biased codecs only.
    min_numel: what has fewer values travels raw; 10,000 by default. Under DDP that is a parameter,
        and this is short for `policy=Policy(min_numel=...)`. Under FSDP2 it is a buffer, all
        gradients of a module without those of FSDP modules below it, or a shard between replicas.
    seed: of the random streams; runs with the same seed and data are the same bit for bit.
        DDP attachments that are open at once draw different numbers from one seed; give those of
        FSDP2 a seed each.

    Of `DistributedDataParallel` alone:

    policy: which parameters travel otherwise, and for how many steps all do.
    collective: "all_reduce", "all_gather", "two_shot", "relay" or "code_reduce"; by default what
        suits the codec.
    lanes: threads that encode, exchange and decode; more overlap more and take more memory.
    chunk: values that a lane takes at a time; by default 2^20 between two workers, and 2^20 for
        each worker among more. Neither changes the result.
    wrap: makes the hook to be registered of ours, as `hook_with_zero_step` does.

    Of FSDP2 alone:

    replicas: for HSDP, the workers that hold the same shards as this one: a mesh of one dimension
        or a process group. `codec` then encodes what goes between them.
    within: with `replicas`, the codec between workers that hold different shards, which are mostly
        in one machine; by default none.
    weights: the codec for the weights that FSDP gathers, such as `gw.QSGD(bits=8)`; by default
        FSDP sends them as they are, and they are not counted.
    """
    common: dict[str, Any] = {"scaler": scaler, "error_feedback": error_feedback, "seed": seed}
    if min_numel is not None:
        common["min_numel"] = min_numel
    of_ddp: dict[str, Any] = {
        "policy": policy, "collective": collective, "lanes": lanes, "chunk": chunk, "wrap": wrap,
    }  # fmt: skip
    of_fsdp: dict[str, Any] = {"replicas": replicas, "within": within, "weights": weights}
    if not isinstance(module, DistributedDataParallel):
        from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # slow to import

        if isinstance(module, FullyShardedDataParallel):
            raise TypeError(
                "`attach` takes FSDP2, got a module wrapped in FullyShardedDataParallel, which is "
                "FSDP1; call `torch.distributed.fsdp.fully_shard` on the model instead."
            )
        if isinstance(module, FSDPModule):
            from gradwire.adapters.fsdp.attach import attach as attach_fsdp

            _check_unused("FSDP2", of_ddp, _OF_DDP, of_fsdp)
            return attach_fsdp(module, as_codec(codec), **common, **of_fsdp)
    _check_unused("DistributedDataParallel", of_fsdp, _OF_FSDP, of_ddp)
    return attach_ddp(module, codec, **common, **of_ddp)


def _check_unused(
    kind: str, given: dict[str, Any], defaults: dict[str, Any], own: dict[str, Any]
) -> None:
    """Refuse options of the other kind: nothing would come of them."""
    for name, value in given.items():
        if value is not defaults[name] and value != defaults[name]:
            raise TypeError(
                f"`{name}` is no option of {kind}, which takes scaler, error_feedback, min_numel, "
                f"seed, {', '.join(own)}; leave it out."
            )
