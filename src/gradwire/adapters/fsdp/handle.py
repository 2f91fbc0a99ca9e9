"""What happens to FSDP modules: `Handle`, which `gradwire.adapters.fsdp.attach.attach` returns.

FSDP reduces the gradients of each of its modules in one buffer, when the module's backward pass is
done, and waits for it; it gathers their weights in one buffer too. All here runs in these places,
over FSDP's own process groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from gradwire import scratch
from gradwire.adapters.fsdp import checkpoint
from gradwire.adapters.fsdp.gatherer import Gatherer
from gradwire.adapters.fsdp.log import Log
from gradwire.adapters.fsdp.plan import ShardedPlan, plan
from gradwire.adapters.fsdp.scatterer import Scatterer
from gradwire.adapters.fsdp.units import Unit
from gradwire.adapters.tensorboard import Writer
from gradwire.codec import Codec
from gradwire.collectives.parts import Part
from gradwire.key import Key
from gradwire.reduction.loss_scale import LossScale
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.stats import Stats
from gradwire.transport.link import Account, Link


class Handle:
    """What `attach` returns: the plan, statistics, and state for checkpoints.

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
        self._first_step = 0
        self._codec_nbytes = 0  # scratch memory of the codecs in the thread of backward passes
        self._raw: dict[str, None] = {}
        self._log: Log | None = None
        self._is_closed = False

    @property
    def codec(self) -> Codec:
        """The codec that was attached."""
        return self._scatterer.codec if self._between is None else self._between.codec

    def plan(self) -> ShardedPlan:
        """What becomes of each module; print it."""
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
        self._scale.follow()
        if any(self._owed([unit]).values()):
            unit.check_whole(buffer)
        link, replica = _link(self._links, group), self._between.link.rank if self._between else 0
        key = Key(self._seed, self._steps[unit.name], unit.stream(replica))
        if self._log is not None:
            is_last = self._between is None
            self._log.scatters(unit, self._scatterer, link, key, buffer, ends=is_last)
        self._scatterer.reduce(link, unit, buffer, out, key, factor)
        if self._between is None:
            self._count(unit, self._scatterer.is_coded(buffer))

    def exchange(self, unit: Unit, shard: Tensor) -> None:
        """Replace `shard` by its mean over the replicas."""
        self._check_open()
        between = self._between
        assert between is not None
        between.step = self._steps[unit.name]
        part = Part(shard, unit.stream(between.link.size) + unit.shard, name=unit.name)
        if self._log is not None:
            part = self._log.exchanges(unit, between, part)
        between.reduce(shard, [part])
        self._count(unit, between.route_for(part.tensor, shard) is not None)

    def gather(self, unit: Unit, out: Tensor, own: Tensor, group: dist.ProcessGroup) -> None:
        """Fill `out` with the weights of `unit`, of which `own` are this worker's.

        Replicas get the same bits. Over a smaller group than that of the shards FSDP gathers what
        was gathered before, and that is not rounded again.
        """
        assert self._gatherer is not None
        is_first = not self._is_closed and group.size() == unit.shards
        key = Key(self._seed, self._steps[unit.name], unit.first) if is_first else None
        self._gatherer.gather(_link(self._weight_links, group), out, own, key)

    def _count(self, unit: Unit, is_coded: bool) -> None:
        self._codec_nbytes = scratch.of_thread().nbytes
        self._steps[unit.name] += 1
        if not is_coded:
            self._raw[unit.name] = None

    def stats(self) -> Stats:
        """Totals since `attach`. `raw` names the modules that `codec` was not used for."""
        account = sum((link.account for link in self._gradient_links()), Account())
        weights = sum((link.account for link in self._weight_links.values()), Account())
        links = [*self._gradient_links(), *self._weight_links.values()]
        residuals = list(self._scatterer.residuals.values())
        if self._between is not None:
            residuals += self._between.residuals.values()
        return Stats(
            steps=max(self._steps.values()) - self._first_step,
            bytes_sent=account.bytes_sent,
            bits_per_value=8 * account.message_bytes / max(account.values, 1),
            encode_s=account.encode_s + weights.encode_s,
            comm_s=account.comm_s + weights.comm_s,
            decode_s=account.decode_s + weights.decode_s,
            raw=tuple(self._raw),
            learned={},
            weight_bytes=weights.bytes_sent,
            buffer_bytes=self._codec_nbytes + sum(link.buffer_nbytes for link in links),
            residual_bytes=sum(residual.nbytes for residual in residuals) + self._scale.nbytes,
        )

    def log_to(
        self, writer: Writer, *, every: int = 10, nmse: bool = False, layers: bool = False
    ) -> None:
        """Write bytes, their ratio to float32, and times to `writer`, every so many steps.

        nmse: also what `codec` has lost of this worker's gradients; costs one more encoding in
            these steps.
        layers: that for each module too. One rank is enough: nothing is exchanged for it.
        """
        self._log = Log(writer, self.stats, every=every, nmse=nmse, layers=layers)
        self._log.start_from(max(self._steps.values()))

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: every rank must save its own. It suits `dcp.save`."""
        self._scale.follow()  # the last step may have been skipped
        return checkpoint.save(self._steps, self._scale.value, self._owed(self._units))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, on the same rank of as many workers.

        If there were more or fewer workers, residuals start anew. A state that does not fit is
        refused, and nothing has changed then.
        """
        done = max(self._steps.values()) - self._first_step
        checkpoint.load(state_dict, self._steps, self._owed(self._units))
        self._first_step = max(self._steps.values()) - done
        self._scale.start_from(float(state_dict["scale"]))
        if self._log is not None:
            self._log.start_from(max(self._steps.values()))

    def close(self) -> None:
        """Let go of memory and modules; `stats` and state stay.

        The modules refuse to train until `attach` is called again. Their weights are gathered as
        they are from now on.
        """
        self._is_closed = True
        self._codec_nbytes = 0
        scratch.of_thread().free()
        for link in (*self._gradient_links(), *self._weight_links.values()):
            link.free()
        if self._log is not None:
            self._log.ended()
            self._log = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this gradwire handle is closed; attach to the module again.")

    def _gradient_links(self) -> list[Link]:
        between = [] if self._between is None else [self._between.link]
        return [*self._links.values(), *between]

    def _owed(self, units: Sequence[Unit]) -> checkpoint.Owed:
        """The residuals of `units`, which are there from the start."""
        residuals = {u.name: self._scatterer.residual(u) for u in units if self._scatterer.owes(u)}
        owed = {"residuals": residuals, "between": {}}
        if self._between is not None:
            for unit in units:
                number = unit.stream(self._between.link.size) + unit.shard
                route = self._between.route_for(number, unit.own)
                if route is not None and route.error_feedback:
                    owed["between"][unit.name] = self._between.residual(number, unit.own)
        return owed


def _link(links: dict[dist.ProcessGroup, Link], group: dist.ProcessGroup) -> Link:
    """That of `links` over `group`, made if there is none yet."""
    if group not in links:
        links[group] = Link(group)
    return links[group]
