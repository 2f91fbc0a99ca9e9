"""The adapter to DistributedDataParallel: `attach`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from gradwire.adapters.checks import check_agreement
from gradwire.adapters.ddp.handle import DDPHandle
from gradwire.codec import Codec
from gradwire.codecs import as_codec
from gradwire.reduction import streams
from gradwire.reduction.parameters import num_reduced, parameters_of
from gradwire.reduction.policy import Policy
from gradwire.reduction.reducer import Reducer
from gradwire.transport import groups
from gradwire.transport.lanes import Lanes
from gradwire.transport.link import Link


def attach(
    module: DistributedDataParallel,
    codec: Codec | str,
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
) -> DDPHandle:
    """Reduce the gradients of `module` through `codec`; `gradwire.attach` says what options do."""
    codec = as_codec(codec)
    _check_module(module)
    streams.check_seed(seed)
    if lanes < 1 or (chunk is not None and chunk < 1):
        raise ValueError(f"`lanes` and `chunk` must be at least 1, got {lanes} and {chunk}.")
    policy = _policy(policy, min_numel)
    parameters = parameters_of(module)
    policy.check([p.name for p in parameters])
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
    link = Link(module.process_group)
    offers = check_agreement(settings, link, (uuid.uuid4().hex, streams.open_numbers()))
    reducer = Reducer(
        link,
        codec,
        collective=collective,
        error_feedback=error_feedback,
        min_numel=policy.min_numel,
        codecs={p.number: policy.codec_for(p.name, codec) for p in parameters},
        warmup_steps=policy.warmup_steps,
        chunk=chunk,
    )
    own = groups.same_members(module.process_group, f"gradwire/{offers[0][0]}", lanes)
    handle = DDPHandle(
        parameters,
        reducer,
        Lanes([Link(group) for group in own]),
        streams.Stream(seed, streams.free_number([taken for _, taken in offers])),
        num_reduced=num_reduced(module),
        scaler=scaler,
    )
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


def _check_module(module: DistributedDataParallel) -> None:
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
