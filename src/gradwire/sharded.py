"""What happens to FSDP modules: `Handle`, which `gradwire.fsdp.attach` returns.

FSDP reduces the gradients of each of its modules in one buffer, when the module's backward pass is
done, and waits for it; it gathers their weights in one buffer too. All here runs in these places,
over FSDP's own process groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from gradwire.codec import Codec, Key
from gradwire.gatherer import Gatherer
from gradwire.link import Account, Link
from gradwire.loss_scale import LossScale
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
    Every leg of every unit has random streams of its own. `gatherer` gathers weights, if it is not
    left to FSDP.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        scatterer: Scatterer,
        between: Reducer | None,
        gatherer: Gatherer | None,
        *,
        seed: int,
        scaler: GradScaler | None = None,
    ) -> None:
        self._units = units
        self._scatterer = scatterer
        self._between = between
        self._gatherer = gatherer
        self._seed = seed
        owing: list[Scatterer | Reducer] = [scatterer] if between is None else [scatterer, between]
        self._scale = LossScale(scaler, owing)
        self._steps = {unit.name: 0 for unit in units}
        self._links: dict[dist.ProcessGroup, Link] = {}
        self._weight_links: dict[dist.ProcessGroup, Link] = {}
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
        self._scale.follow()
        replica = 0 if self._between is None else self._between.link.rank
        key = Key(self._seed, self._steps[unit.name], self._tensor(unit, replica))
        self._scatterer.reduce(_link(self._links, group), buffer, out, unit.name, key, factor)
        if self._between is None:
            self._count(unit, self._scatterer.is_coded(buffer))

    def exchange(self, unit: Unit, shard: Tensor) -> None:
        """Replace `shard` by its mean over the replicas."""
        self._check_open()
        assert self._between is not None
        self._between.step = self._steps[unit.name]
        self._between.reduce(shard, [Part(shard, self._exchanged(unit))])
        self._count(unit, self._between.route_for(self._exchanged(unit), shard) is not None)

    def gather(self, unit: Unit, out: Tensor, own: Tensor, group: dist.ProcessGroup) -> None:
        """Fill `out` with the weights of `unit`, of which `own` are this worker's.

        Replicas get the same bits. Over a smaller group than that of the shards FSDP gathers what
        was gathered before, and that is not rounded again.
        """
        assert self._gatherer is not None
        is_first = not self._is_closed and group.size() == unit.shards
        key = Key(self._seed, self._steps[unit.name], self._tensor(unit, 0)) if is_first else None
        self._gatherer.gather(_link(self._weight_links, group), out, own, key)

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
        weights = sum((link.account for link in self._weight_links.values()), Account())
        return Stats(
            steps=max(self._steps.values()),
            bytes_sent=account.bytes_sent,
            bits_per_value=8 * account.message_bytes / max(account.values, 1),
            encode_s=account.encode_s + weights.encode_s,
            comm_s=account.comm_s + weights.comm_s,
            decode_s=account.decode_s + weights.decode_s,
            raw=tuple(self._raw),
            learned={},
            weight_bytes=weights.bytes_sent,
            buffer_bytes=sum(link.buffer_nbytes for link in (*links, *self._weight_links.values())),
            residual_bytes=sum(residual.nbytes for residual in residuals) + self._scale.nbytes,
        )

    def state_dict(self) -> dict[str, Any]:
        """This rank's state by module: steps, which key the random streams, and residuals."""
        self._scale.follow()  # the last step may have been skipped
        between = {} if self._between is None else self._between.residuals
        numbers = {unit.name: self._exchanged(unit) for unit in self._units}
        return {
            "world": dist.get_world_size(),
            "rank": dist.get_rank(),
            "steps": dict(self._steps),
            "scale": self._scale.value,
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
        self._scale.start_from(state["scale"])

    def close(self) -> None:
        """Let go of the modules, which refuse to train until `attach` is called again.

        Their weights are gathered as they are from now on.
        """
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


def _link(links: dict[dist.ProcessGroup, Link], group: dist.ProcessGroup) -> Link:
    """That of `links` over `group`, made if there is none yet."""
    if group not in links:
        links[group] = Link(group)
    return links[group]
