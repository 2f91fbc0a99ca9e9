"""The adapter to DistributedDataParallel: `attach`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from gradwire.agreement import check_agreement, check_codec
from gradwire.codec import Codec
from gradwire.handle import Handle
from gradwire.link import Link
from gradwire.parameters import parameters_of
from gradwire.policy import Policy
from gradwire.reducer import Reducer


def attach(
    module: DistributedDataParallel,
    codec: Codec,
    *,
    policy: Policy | None = None,
    scaler: GradScaler | None = None,
    collective: str | None = None,
    error_feedback: bool | None = None,
    min_numel: int | None = None,
    seed: int = 0,
    lanes: int = 3,
    chunk: int | None = None,
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> Handle:
    """Reduce the gradients of `module` through `codec`. Call it once, on every rank alike.

    policy: which parameters travel otherwise, and for how many steps all do.
    scaler: what scales the loss, if anything does: residuals are in the same scale, and a copy of
        them undoes the steps that it skips.
    collective: "all_reduce", "all_gather", "two_shot" or "code_reduce"; by default what suits the
        codec.
    error_feedback: add what was lost in a step to the next; by default for biased codecs only.
    min_numel: short for `policy=Policy(min_numel=...)`.
    seed: of the random streams; runs with the same seed and data are the same bit for bit.
    lanes: threads that encode, exchange and decode; more overlap more and take more memory.
    chunk: values that a lane takes at a time; by default 2^20 between two workers, and 2^20 for
        each worker among more. Neither changes the result.
    wrap: makes the hook to be registered of ours, as `hook_with_zero_step` does.
    """
    _check_module(module, codec)
    if lanes < 1 or (chunk is not None and chunk < 1):
        raise ValueError(f"`lanes` and `chunk` must be at least 1, got {lanes} and {chunk}.")
    policy = _policy(policy, min_numel)
    parameters = parameters_of(module)
    policy.check([p.name for p in parameters])
    links = [Link(_own_group(module.process_group)) for _ in range(lanes)]
    settings = {
        "codec": str(codec),
        "policy": str(policy),
        "collective": collective,
        "error_feedback": error_feedback,
        "seed": seed,
        "lanes": lanes,
        "chunk": chunk,
        "scaler": scaler is not None,
        "parameters": [(p.name, tuple(p.value.shape), p.is_trained) for p in parameters],
    }
    check_agreement(settings, links[0])
    reducer = Reducer(
        links[0],
        codec,
        collective=collective,
        error_feedback=error_feedback,
        min_numel=policy.min_numel,
        codecs={p.number: policy.codec_for(p.name, codec) for p in parameters},
        warmup_steps=policy.warmup_steps,
        chunk=chunk,
        seed=seed,
    )
    handle = Handle(parameters, reducer, links, scaler)
    hook = handle.hook()
    module.register_comm_hook(None, wrap(hook) if wrap else hook)
    return handle


def _policy(policy: Policy | None, min_numel: int | None) -> Policy:
    if policy is None:
        return Policy() if min_numel is None else Policy(min_numel=min_numel)
    if not isinstance(policy, Policy):
        raise TypeError(
            f'`policy` must be a policy such as `gw.Policy(skip=("embed*",))`, got {policy!r}.'
        )
    if min_numel is not None:
        raise ValueError("`min_numel` is said twice; put it into the policy.")
    return policy


def _check_module(module: DistributedDataParallel, codec: Codec) -> None:
    check_codec(codec)
    if not isinstance(module, DistributedDataParallel):
        raise TypeError(
            f"`attach` takes a DistributedDataParallel module, got {type(module).__name__}; "
            "wrap it first: `ddp = DistributedDataParallel(model)`, or `fully_shard(model)`."
        )
    if module._use_python_reducer:
        raise NotImplementedError(
            '`torch._dynamo.config.optimize_ddp = "python_reducer"` gives a hook one gradient at a '
            "time; leave it at its default."
        )
    devices = {p.device.type for p in module.parameters()}
    if devices != {"cpu"}:
        raise NotImplementedError(
            f"gradwire has kernels for CPU tensors, but the module is on {sorted(devices)}."
        )
    if getattr(module, "_comm_hooks", None):
        raise RuntimeError(
            "this DDP module has a communication hook already, and takes only one; it may come "
            "from `register_comm_hook`, an earlier `attach`, or DDP's `mixed_precision`."
        )


def _own_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A group of the same members that nobody else uses, so that no collective can get between."""
    members = dist.get_process_group_ranks(group)
    everyone = len(members) == dist.get_world_size()
    own: dist.ProcessGroup = dist.new_group(
        members,
        timeout=group._get_backend(torch.device("cpu")).options._timeout,
        use_local_synchronization=not everyone,
    )
    return own
