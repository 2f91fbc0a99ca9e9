"""The adapter to DistributedDataParallel: `attach`."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from gradwire.adapters.checks import check_agreement
from gradwire.adapters.ddp.auto.start import check_options, start
from gradwire.adapters.ddp.handle import DDPHandle
from gradwire.codec import Codec
from gradwire.codecs import as_codec
from gradwire.codecs.cast import Identity
from gradwire.planner.auto.settings import Auto, as_auto
from gradwire.reduction import streams
from gradwire.reduction.parameters import Parameter, num_reduced, parameters_of
from gradwire.reduction.policy import Policy, policy_of
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.rehearsal import rehearse
from gradwire.transport import groups
from gradwire.transport.gpu import device_for
from gradwire.transport.lanes import Lanes
from gradwire.transport.link import Link


def attach(
    module: DistributedDataParallel,
    codec: Codec | Auto | str,
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
    auto = as_auto(codec)
    if auto is not None:
        check_options(collective, error_feedback)
    codec = as_codec(codec) if auto is None else Identity()
    _check_module(module)
    streams.check_seed(seed)
    if lanes < 1 or (chunk is not None and chunk < 1):
        raise ValueError(f"`lanes` and `chunk` must be at least 1, got {lanes} and {chunk}.")
    policy = policy_of(policy, min_numel)
    parameters = parameters_of(module)
    policy.check([p.name for p in parameters])
    memory = _memory_of(parameters, is_auto=auto is not None)
    settings = {
        "codec": str(auto or codec),
        "policy": str(policy),
        "collective": collective,
        "error_feedback": error_feedback,
        "seed": seed,
        "lanes": lanes,
        "chunk": chunk,
        "scaler": scaler is not None,
        "parameters": [(p.name, tuple(p.value.shape), p.is_trained) for p in parameters],
    }
    device = device_for(module.process_group, memory, beside=True)
    link = Link(module.process_group, device)
    own_offer = (uuid.uuid4().hex, streams.open_numbers(), platform.node())
    offers = check_agreement(settings, link, own_offer)
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
    for route in reducer.routes.values():
        rehearse(route.codec, route.collective, link.size, device)
    name, count = f"gradwire/{offers[0][0]}", lanes if device.memory.type == "cpu" else 1
    own = groups.same_members(module.process_group, name, count, device.memory)
    links, pilot = [Link(group, device) for group in own], None
    if auto is not None:
        neighbours = [node for _, _, node in offers].count(platform.node())
        pilot = start(auto, parameters, policy, reducer, links, neighbours)
    handle = DDPHandle(
        parameters,
        reducer,
        Lanes(links),
        streams.Stream(seed, streams.free_number([taken for _, taken, _ in offers])),
        num_reduced=num_reduced(module),
        scaler=scaler,
        pilot=pilot,
    )
    hook = handle.hook()
    module.register_comm_hook(None, wrap(hook) if wrap else hook)
    return handle


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
    if getattr(module, "_comm_hooks", None):
        raise RuntimeError(
            "this DDP module has a communication hook already, and takes only one; it may come "
            "from `register_comm_hook`, an earlier `attach`, or DDP's `mixed_precision`."
        )


def _memory_of(parameters: Sequence[Parameter], *, is_auto: bool) -> torch.device:
    """Where the module is."""
    devices = sorted({p.value.device for p in parameters}, key=str)
    if len(devices) > 1:
        raise NotImplementedError(
            f"gradwire trains modules on one device, got one on {', '.join(map(str, devices))}; "
            "attach to one module for each, or move it."
        )
    if devices and devices[0].type != "cpu":
        sparse = ", ".join(p.name for p in parameters if p.is_sparse)
        if sparse:
            raise NotImplementedError(
                f"sparse gradients are for the CPU so far, got {sparse} on {devices[0]}; "
                "make the embedding with `sparse=False`."
            )
        if is_auto:
            raise NotImplementedError(
                f'"auto" is for modules on the CPU so far, got one on {devices[0]}; attach a codec '
                "such as `qsgd:bits=4`."
            )
    return devices[0] if devices else torch.device("cpu")
