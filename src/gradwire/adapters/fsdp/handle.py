"""What `attach` returns for FSDP2: a handle that FSDP calls to reduce gradients and gather weights.

FSDP reduces the gradients of each of its modules in one buffer, when the module's backward pass is
done, and waits for it; it gathers their weights in one buffer too. All here runs in these places,
over FSDP's own process groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from gradwire.adapters.fsdp.gatherer import Gatherer
from gradwire.adapters.fsdp.plan import ShardedPlan, plan
from gradwire.adapters.fsdp.scatterer import Scatterer
from gradwire.adapters.fsdp.units import Unit
from gradwire.adapters.handle import Handle
from gradwire.codec import Codec
from gradwire.collectives.parts import Part
from gradwire.key import Key
from gradwire.reduction.checkpoint import Checkpoint, Progress
from gradwire.reduction.loss_scale import loss_scale
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.residuals import Residuals
from gradwire.reduction.stats import Stats
from gradwire.transport.account import Account
from gradwire.transport.device import HOST
from gradwire.transport.executor import Inline
from gradwire.transport.gpu import device_for
from gradwire.transport.link import Link

Links = dict[dist.ProcessGroup, Link]


class FSDPHandle(Handle):
    """The handle of FSDP modules.

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
        residuals: Residuals,
        *,
        seed: int,
        scaler: GradScaler | None = None,
        memory: torch.device = HOST.memory,
    ) -> None:
        super().__init__(residuals, loss_scale(scaler, residuals))
        self._units = units
        self._scatterer = scatterer
        self._between = between
        self._gatherer = gatherer
        self._seed = seed
        self._memory = memory
        self._steps = {unit.name: 0 for unit in units}
        self._links: Links = {}
        self._weight_links: Links = {}
        self._first_step = 0
        self._raw: dict[str, None] = {}
        self._is_closed = False

    @property
    def codec(self) -> Codec:
        return self._scatterer.codec if self._between is None else self._between.codec

    def plan(self) -> ShardedPlan:
        return plan(self._units, self._scatterer, self._between, self._gatherer)

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
        if self._log is not None:
            self._log.begins(self._steps[unit.name] + 1)
        self._scale.follow()()
        if not self._owing([unit]).keys().isdisjoint((unit.within, unit.between)):
            unit.check_whole(buffer)
        link = self._link(self._links, group)
        replica = self._between.link.rank if self._between else 0
        key = Key(self._seed, self._steps[unit.name], unit.stream(replica))
        parts = self._scatterer.parts(unit, buffer, key)
        if self._log is not None:
            self._log.sends(buffer.numel(), (link.size - 1) / link.size)
            if self._between is None:  # else its error is that of the other leg
                parts = [self._log.watched(unit.label, part) for part in parts]
        with link.entered():
            self._scatterer.reduce(link, buffer, parts, out, key, factor)
        if self._between is None:
            self._count(unit, self._scatterer.is_coded(buffer))

    def exchange(self, unit: Unit, shard: Tensor) -> None:
        """Replace `shard` by its mean over the replicas."""
        self._check_open()
        between = self._between
        assert between is not None
        between.step, link = self._steps[unit.name], between.link
        part = Part(shard, unit.stream(link.size) + unit.shard, name=unit.between)
        if self._log is not None:
            self._log.sends(shard.numel(), 2 * (link.size - 1) / link.size)
            part = self._log.watched(unit.label, part)
        between.submit(Inline(link), shard, [part], last=True).wait()
        self._count(unit, between.route_for(part.tensor, shard) is not None)

    def gather(self, unit: Unit, out: Tensor, own: Tensor, group: dist.ProcessGroup) -> None:
        """Fill `out` with the weights of `unit`, of which `own` are this worker's.

        Replicas get the same bits. Over a smaller group than that of the shards FSDP gathers what
        was gathered before, and that is not rounded again.
        """
        assert self._gatherer is not None
        is_first = not self._is_closed and group.size() == unit.shards
        key = Key(self._seed, self._steps[unit.name], unit.first) if is_first else None
        link = self._link(self._weight_links, group)
        with link.entered():
            self._gatherer.gather(link, out, own, key)

    def stats(self) -> Stats:
        """Totals since `attach`. `raw` names the modules that `codec` was not used for."""
        gradients, weights = self._gradient_links(), list(self._weight_links.values())
        account = sum((link.account for link in gradients), Account())
        of_weights = sum((link.account for link in weights), Account())
        return Stats(
            steps=max(self._steps.values()) - self._first_step,
            bytes_sent=account.bytes_sent,
            bits_per_value=8 * account.message_bytes / max(account.values, 1),
            encode_s=account.encode_s + of_weights.encode_s,
            comm_s=account.comm_s + of_weights.comm_s,
            decode_s=account.decode_s + of_weights.decode_s,
            raw=tuple(self._raw),
            weight_bytes=of_weights.bytes_sent,
            buffer_bytes=sum(link.scratch.nbytes for link in (*gradients, *weights)),
            residual_bytes=self._residuals.nbytes,
        )

    def close(self) -> None:
        """Let go of memory and modules; `stats` and state stay.

        The modules refuse to train until `attach` is called again. Their weights are gathered as
        they are from now on.
        """
        self._is_closed = True
        for link in (*self._gradient_links(), *self._weight_links.values()):
            link.scratch.free()
        if self._log is not None:
            self._log.ended()
            self._log = None

    def _checkpoint(self) -> Checkpoint:
        sizes = {u.within: u.gradients.numel() for u in self._units}
        return Checkpoint(
            dist.get_rank(),
            dist.get_world_size(),
            self._residuals,
            owing=self._owing(self._units),
            known=sizes | {u.between: u.own.numel() for u in self._units},
        )

    def _progress(self) -> Progress:
        step = max(self._steps.values())
        return Progress(step, scale=self._scale.value, modules=self._steps)

    def _resume(self, progress: Progress) -> None:
        done = max(self._steps.values()) - self._first_step
        self._steps.update(progress.modules)
        self._first_step = max(self._steps.values()) - done

    def _owing(self, units: Sequence[Unit]) -> dict[str, int]:
        """The residuals of `units` by name, with their sizes."""
        owing = {u.within: u.gradients.numel() for u in units if self._scatterer.owes(u)}
        if self._between is not None:
            for unit in units:
                number = unit.stream(self._between.link.size) + unit.shard
                route = self._between.route_for(number, unit.own)
                if route is not None and route.error_feedback:
                    owing[unit.between] = unit.own.numel()
        return owing

    def _count(self, unit: Unit, is_coded: bool) -> None:
        self._steps[unit.name] += 1
        if not is_coded:
            self._raw[unit.name] = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this gradwire handle is closed; attach to the module again.")

    def _gradient_links(self) -> list[Link]:
        between = [] if self._between is None else [self._between.link]
        return [*self._links.values(), *between]

    def _link(self, links: Links, group: dist.ProcessGroup) -> Link:
        """That of `links` over `group`, made if there is none yet."""
        if group not in links:
            links[group] = Link(group, device_for(group, self._memory, beside=False))
        return links[group]
