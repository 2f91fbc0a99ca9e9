"""What happens to the gradients of FSDP modules: `Handle`, which `gradwire.fsdp.attach` returns.

FSDP reduces the gradients of each of its modules in one buffer, when the module's backward pass is
done, and waits for it. All here runs in that place, over FSDP's own process groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from gradwire.codec import Codec, Key
from gradwire.link import Account, Link
from gradwire.parts import Part
from gradwire.reducer import Reducer
from gradwire.scatterer import Scatterer
from gradwire.stats import Stats


@dataclass(frozen=True)
class Unit:
    """An FSDP module: its name, its number, and which of how many shards of it this worker has."""

    name: str
    number: int
    shard: int
    shards: int


class Handle:
    """What `attach` returns: statistics and state for checkpoints.

    Two legs: `scatterer` reduces within a group of shards, `between` the shards over the replicas.
    Every leg of every unit has random streams of its own.
    """

    def __init__(
        self, units: Sequence[Unit], scatterer: Scatterer, between: Reducer | None, seed: int
    ) -> None:
        self._units = units
        self._scatterer = scatterer
        self._between = between
        self._seed = seed
        self._steps = {unit.name: 0 for unit in units}
        self._links: dict[dist.ProcessGroup, Link] = {}
        self._raw: dict[str, None] = {}
        self._is_closed = False

    @property
    def codec(self) -> Codec:
        """The codec that was attached."""
        return self._scatterer.codec if self._between is None else self._between.codec

    def scatter(
        self,
        unit: Unit,
        buffer: Tensor,
        out: Tensor,
        group: dist.ProcessGroup,
        factor: float | None,
    ) -> None:
        """Fill `out` with this worker's shard of the mean, or of `factor` times the sum."""
        self._check_open()
        if group not in self._links:
            self._links[group] = Link(group)
        replica = 0 if self._between is None else self._between.link.rank
        key = Key(self._seed, self._steps[unit.name], self._tensor(unit, replica))
        self._scatterer.reduce(self._links[group], buffer, out, unit.name, key, factor)
        if self._between is None:
            self._count(unit, self._scatterer.is_coded(buffer))

    def exchange(self, unit: Unit, shard: Tensor) -> None:
        """Replace `shard` by its mean over the replicas."""
        self._check_open()
        assert self._between is not None
        self._between.step = self._steps[unit.name]
        self._between.reduce(shard, [Part(shard, self._exchanged(unit))])
        self._count(unit, self._between.route_for(self._exchanged(unit), shard) is not None)

    def _count(self, unit: Unit, is_coded: bool) -> None:
        self._steps[unit.name] += 1
        if not is_coded:
            self._raw[unit.name] = None

    def stats(self) -> Stats:
        """Totals since `attach`. `raw` names the modules that `codec` was not used for."""
        links = list(self._links.values())
        residuals = list(self._scatterer.residuals.values())
        if self._between is not None:
            links.append(self._between.link)
            residuals += self._between.residuals.values()
        account = sum((link.account for link in links), Account())
        return Stats(
            steps=max(self._steps.values()),
            bytes_sent=account.bytes_sent,
            bits_per_value=8 * account.message_bytes / max(account.values, 1),
            encode_s=account.encode_s,
            comm_s=account.comm_s,
            decode_s=account.decode_s,
            raw=tuple(self._raw),
            learned={},
            buffer_bytes=sum(link.buffer_nbytes for link in links),
            residual_bytes=sum(residual.nbytes for residual in residuals),
        )

    def state_dict(self) -> dict[str, Any]:
        """This rank's state by module: steps, which key the random streams, and residuals."""
        between = {} if self._between is None else self._between.residuals
        numbers = {unit.name: self._exchanged(unit) for unit in self._units}
        return {
            "world": dist.get_world_size(),
            "rank": dist.get_rank(),
            "steps": dict(self._steps),
            "residuals": {n: r.clone() for n, r in self._scatterer.residuals.items()},
            "between": {n: between[i].clone() for n, i in numbers.items() if i in between},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, on the same rank of as many workers."""
        here = (dist.get_world_size(), dist.get_rank())
        if (state["world"], state["rank"]) != here:
            raise ValueError(
                f"this state is of rank {state['rank']} of {state['world']}, but this worker is "
                f"rank {here[1]} of {here[0]}; residuals belong to one worker."
            )
        if set(state["steps"]) != set(self._steps):
            odd = sorted(set(state["steps"]) ^ set(self._steps))
            raise ValueError(f"the state and the module differ in what they have: {odd}.")
        if state["between"] and self._between is None:
            raise ValueError("the state is of an attachment with `replicas`; pass them here too.")
        self._steps = dict(state["steps"])
        self._scatterer.residuals = {n: r.clone() for n, r in state["residuals"].items()}
        if self._between is not None:
            numbers = {unit.name: self._exchanged(unit) for unit in self._units}
            self._between.residuals = {
                numbers[name]: residual.clone() for name, residual in state["between"].items()
            }

    def close(self) -> None:
        """Let go of the modules, which refuse to train until `attach` is called again."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this gradwire handle is closed; attach to the module again.")

    def _tensor(self, unit: Unit, leg: int) -> int:
        """The number of the first shard of a unit on a leg: one of each replica, then between."""
        replicas = 1 if self._between is None else self._between.link.size
        return (unit.number * (replicas + 1) + leg) * unit.shards

    def _exchanged(self, unit: Unit) -> int:
        replicas = 1 if self._between is None else self._between.link.size
        return self._tensor(unit, replicas) + unit.shard


class Scatter(ReduceScatter):
    """What FSDP calls to reduce the gradients of one unit."""

    def __init__(self, handle: Handle, unit: Unit) -> None:
        self._handle = handle
        self._unit = unit

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Memory for a buffer or a shard."""
        return torch.empty(*size, dtype=dtype, device=device)

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


def _factor(op: Any) -> float | None:
    """What the sum is to be multiplied by; None: it is to be the mean."""
    if op == dist.ReduceOp.AVG:
        return None
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.PREMUL_SUM:
        return float(op.factor)
    raise ValueError(f"gradients are reduced by AVG, SUM or PREMUL_SUM, got {op}.")
