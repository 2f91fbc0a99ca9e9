"""The adapter to FSDP2, that is to modules that `fully_shard` was called on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather

from gradwire.adapters.checks import check_agreement
from gradwire.adapters.fsdp.comms import Exchange, Gather, Scatter
from gradwire.adapters.fsdp.gatherer import Gatherer
from gradwire.adapters.fsdp.handle import FSDPHandle
from gradwire.adapters.fsdp.scatterer import Scatterer
from gradwire.adapters.fsdp.units import Unit, first_streams
from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec
from gradwire.codecs import as_codec
from gradwire.codecs.cast import Identity
from gradwire.collectives import COLLECTIVES
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.rehearsal import rehearse
from gradwire.reduction.residuals import Residuals
from gradwire.reduction.streams import check_seed
from gradwire.transport import groups
from gradwire.transport.gpu import device_for
from gradwire.transport.link import Link


def attach(
    module: FSDPModule,
    codec: Codec | str,
    *,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    within: Codec | str | None = None,
    weights: Codec | str | None = None,
    scaler: GradScaler | None = None,
    error_feedback: bool | None = None,
    min_numel: int = 10_000,
    seed: int = 0,
) -> FSDPHandle:
    """Reduce the gradients of `module` through `codec`; `gradwire.attach` says what options do."""
    check_seed(seed)
    codec = as_codec(codec)
    within = None if within is None else as_codec(within)
    weights = None if weights is None else as_codec(weights)
    if replicas is None and within is not None:
        raise ValueError("`within` goes with `replicas`; without them pass the codec as `codec`.")
    if isinstance(replicas, DeviceMesh):
        replicas = replicas.get_group()
    scattering = codec if replicas is None else within or Identity()
    found = _find(module)
    settings = {
        "codec": str(codec),
        "within": str(scattering),
        "weights": str(weights),
        "scaler": scaler is not None,
        "error_feedback": error_feedback,
        "min_numel": min_numel,
        "seed": seed,
        "modules": [(each.name, each.shapes) for each in found],
    }
    if weights is not None:
        _check_weights(weights)
    memory = _memory_of(found, replicas)
    for group in dict.fromkeys(each.group for each in found):  # in one order on all ranks
        _check_leg(scattering, group, settings)
    if replicas is not None:
        _check_leg(codec, replicas, settings)
    options: dict[str, Any] = {"error_feedback": error_feedback, "min_numel": min_numel}
    residuals = Residuals(device_for(found[0].group, memory, beside=False))
    scatterer = Scatterer(scattering, residuals, **options)
    between = None
    if replicas is not None:
        link = Link(replicas, device_for(replicas, memory, beside=False))
        between = Reducer(link, codec, residuals=residuals, seed=seed, **options)
        rehearse(codec, between.route.collective, link.size, link.device)
    gatherer = None if weights is None else Gatherer(weights, min_numel=min_numel)
    units = _units(found, legs=2 if between is None else between.link.size + 1)
    for coded in (scattering, weights):
        if coded is not None:
            rehearse(coded, COLLECTIVES["all_gather"], found[0].group.size(), residuals.device)
    handle = FSDPHandle(
        units, scatterer, between, gatherer, residuals, seed=seed, scaler=scaler, memory=memory
    )
    for each, unit in zip(found, units, strict=True):
        each.module.set_custom_reduce_scatter(Scatter(handle, unit))
        if gatherer is not None:
            each.module.set_custom_all_gather(Gather(handle, unit))
        elif each.gathers:  # for an earlier attachment
            each.module.set_custom_all_gather(DefaultAllGather())
        if between is not None:
            each.module.set_all_reduce_hook(Exchange(handle, unit))
        elif each.exchanges:
            each.module.set_all_reduce_hook(None)  # type: ignore[arg-type]
    return handle


@dataclass(frozen=True, eq=False)
class _Found:
    """An FSDP module with parameters of its own.

    `gathers` and `exchanges`: does an earlier attachment do that?
    """

    name: str
    module: FSDPModule
    group: dist.ProcessGroup
    shapes: list[tuple[int, ...]]
    gradients: Tensor
    weights: Tensor
    gathers: bool
    exchanges: bool
    device: torch.device


def _find(root: FSDPModule) -> list[_Found]:
    """The FSDP modules of `root`. Those that `fully_shard` took together share one buffer."""
    assert isinstance(root, nn.Module)
    found: dict[int, _Found] = {}
    for name, module in root.named_modules():
        if isinstance(module, FSDPModule):
            groups: list[Any] = list(module._get_fsdp_state()._fsdp_param_groups)
            _check_module(name, groups)
            for group in groups:
                found.setdefault(id(group), _found(name, module, group))
    return list(found.values())


def _found(name: str, module: FSDPModule, group: Any) -> _Found:
    policy = group.mp_policy
    trained = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
    return _Found(
        name,
        module,
        group.mesh_info.shard_process_group,
        [tuple(p.sharded_param.shape) for p in group.fsdp_params],
        gradients=_buffer(group, trained, policy.reduce_dtype or policy.param_dtype),
        weights=_buffer(group, group.fsdp_params, policy.param_dtype),
        gathers=isinstance(group._all_gather_comm, Gather),
        exchanges=isinstance(group._all_reduce_hook, Exchange),
        device=group.device,
    )


def _buffer(group: Any, parameters: list[Any], dtype: torch.dtype | None) -> Tensor:
    """Like the buffer that FSDP makes of `parameters`: shards, each padded to the longest.

    Of several types it makes bytes.
    """
    shards = group.mesh_info.shard_process_group.size()
    padded = [
        torch.empty(
            shards * p.padded_sharded_param_size.numel(),
            dtype=dtype or p.sharded_param.dtype,
            device="meta",
        )
        for p in parameters
    ]
    if len({each.dtype for each in padded}) > 1:
        padded = [each.view(torch.uint8) for each in padded]
    return torch.cat(padded) if padded else torch.empty(0, device="meta")


def _units(found: list[_Found], legs: int) -> list[Unit]:
    firsts = first_streams([each.group.size() for each in found], legs)
    return [
        Unit(each.name, first, each.group.rank(), each.group.size(), each.gradients, each.weights)
        for each, first in zip(found, firsts, strict=True)
    ]


def _check_module(name: str, groups: list[Any]) -> None:
    if len(groups) > 1:
        raise ValueError(
            f"'{name}' has parameters on several meshes, for which FSDP takes no other "
            "reduce-scatter than its own; call `fully_shard` with one mesh."
        )
    for group in groups:
        if group.mesh_info.replicate_mesh_dim is not None:
            raise ValueError(
                f"'{name}' is sharded over a mesh with a dimension for replicas, and FSDP reduces "
                'over that itself, uncompressed. Shard it over the other one, `mesh["shard"]`, '
                'and pass `replicas=mesh["replicate"]` to `attach`.'
            )


def _memory_of(found: list[_Found], replicas: dist.ProcessGroup | None) -> torch.device:
    """Where the modules are; FSDP's thread cannot wait for copies to the CPU and back."""
    devices = {each.device for each in found}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise NotImplementedError(f"gradwire trains modules on one device, got {names}; move them.")
    (device,) = devices
    if device.type == "cpu":
        return device
    over = [each.group for each in found] + ([] if replicas is None else [replicas])
    others = {str(groups.backend_of(group, device)) for group in over} - {"nccl"}
    if others:
        raise NotImplementedError(
            f"under FSDP gradients on {device} are reduced over nccl, got {', '.join(others)}; "
            "make the mesh with `init_device_mesh('cuda', ...)`, or train with "
            "DistributedDataParallel, which takes gloo."
        )
    return device


def _check_leg(codec: Codec, group: dist.ProcessGroup, settings: dict[str, Any]) -> None:
    """Will `codec` do for what goes through `group`, and have all there the same settings?"""
    if isinstance(codec, AdaptiveCodec):
        raise TypeError(
            f"{codec!r} learns from the means of whole parameters, and FSDP leaves each worker a "
            "shard; use it under DistributedDataParallel, or a codec without memory, `DQSG`."
        )
    check_agreement(settings, Link(group))


def _check_weights(codec: Codec) -> None:
    if not codec.unbiased:
        raise ValueError(
            f"`weights` must be an unbiased codec such as `gw.QSGD(bits=8)`, got {codec!r}; "
            "weights have no error feedback. For 16 bits give FSDP a `MixedPrecisionPolicy`."
        )
