"""What FSDP calls to gather the weights of a unit and to reduce its gradients, on both legs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, Comm, ReduceScatter

from gradwire.adapters.fsdp.handle import FSDPHandle
from gradwire.adapters.fsdp.units import Unit


class _OfUnit(Comm):
    """Works for one unit, in memory that is allocated when it is asked for."""

    def __init__(self, handle: FSDPHandle, unit: Unit) -> None:
        self._handle = handle
        self._unit = unit

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Memory for a buffer or a shard."""
        return torch.empty(*size, dtype=dtype, device=device)


class Gather(_OfUnit, AllGather):
    """Gathers the weights of one unit."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        """Done when it returns."""
        self._handle.gather(self._unit, output_tensor, input_tensor, group)


class Scatter(_OfUnit, ReduceScatter):
    """Reduces the gradients of one unit."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        """Done when it returns."""
        self._handle.scatter(self._unit, input_tensor, output_tensor, group, _factor(op))


class Exchange:
    """Takes the mean of one unit's shards over the replicas."""

    def __init__(self, handle: FSDPHandle, unit: Unit) -> None:
        self._handle = handle
        self._unit = unit

    def __call__(self, shard: Tensor) -> None:
        """Done when it returns."""
        self._handle.exchange(self._unit, shard)


def _factor(op: Any) -> float | None:
    """What the sum is to be multiplied by; None: it is to be the mean."""
    if op == dist.ReduceOp.AVG:
        return None
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.PREMUL_SUM:
        return float(op.factor)
    raise ValueError(f"gradients are reduced by AVG, SUM or PREMUL_SUM, got {op}.")
