"""What outer steps share with attachments: the plan, statistics, and state for checkpoints."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gradwire.adapters.handle import Handle
from gradwire.algorithms.outer.exchange import Exchange
from gradwire.algorithms.outer.joining import state_from_others
from gradwire.algorithms.outer.state import Course
from gradwire.codec import Codec
from gradwire.reduction.checkpoint import Checkpoint, Progress
from gradwire.reduction.loss_scale import LossScale
from gradwire.reduction.plan import Plan, plan
from gradwire.reduction.stats import Stats
from gradwire.reduction.totals import totals


class OuterHandle(Handle):
    """A handle without the steps."""

    def __init__(self, exchange: Exchange, course: Course) -> None:
        residuals = exchange.reducer.residuals
        super().__init__(residuals, LossScale(None, residuals))
        self._exchange = exchange
        self._reducer = exchange.reducer
        self._course = course
        self._steps = 0
        self._counts = Counter({"outer_steps": 0, "left_out": 0})

    @property
    def codec(self) -> Codec:
        return self._reducer.codec

    @property
    def rank(self) -> int:
        """Of this worker, among those of the group."""
        return self._reducer.link.rank

    @property
    def inner_step(self) -> int:
        """Inner steps so far, those before a checkpoint too."""
        return self._course.step

    def plan(self) -> Plan:
        """What becomes of each parameter in an exchange, and of each buffer."""
        return plan(self._reducer, self._exchange.tensors)

    def stats(self) -> Stats:
        """Totals since it was made. Steps are inner ones: bytes a step compare with DDP's.

        `counts` has "outer_steps", which are those of fragments, and how often this worker was
        "left_out" of one.
        """
        links, tensors = self._exchange.lanes.links, self._exchange.tensors
        return totals(self._reducer, links, tensors, self._steps, self._counts)

    def close(self) -> None:
        """End the threads and their process groups, on every rank; `stats` and state stay."""
        self._exchange.close()
        if self._log is not None:
            self._log.ended()

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: every rank must save its own, with its model and its optimizer.

        It waits for what is on its way. It suits `dcp.save`.
        """
        outer = self._course.save()
        state = super().state_dict()
        state[f"rank{self.rank}"]["before"] = self._course.save_own()
        return {**state, "outer": outer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, on the same rank of as many workers.

        The weights that workers agree on are in it; those of this worker's model are not, and must
        be loaded as they were saved. If there were more or fewer workers, residuals start anew, and
        workers take the agreed weights when that which is on its way arrives. A state that does not
        fit is refused, and nothing has changed then.
        """
        self._course.check(state_dict)
        super().load_state_dict(state_dict)
        same_world = state_dict["world"] == self._exchange.world
        own = state_dict[f"rank{self.rank}"].get("before") if same_world else None
        self._course.load(state_dict["outer"], own)

    def join(self, *, known: bool) -> None:
        """After a restart, give workers that have lost everything what the others know.

        Call it on every rank, after `load_state_dict` where there was something to load.

        known: has this worker loaded a state? If not it takes the agreed weights, momentum and
            steps of those that have, owes nothing, and trains on with an optimizer of its own.
        """
        state = self.state_dict() if known else None
        theirs = state_from_others(self._reducer.link, state, self._course.step)
        if known or theirs is None:
            return
        own: dict[str, Any] = {"residuals": {}, "before": None}
        self.load_state_dict({**theirs, f"rank{self.rank}": own})
        for fragment in self._course.fragments:
            fragment.put(fragment.weights)

    def _checkpoint(self) -> Checkpoint:
        tensors = self._exchange.tensors
        return Checkpoint(
            self.rank,
            self._exchange.world,
            self._residuals,
            owing={each.name: each.value.numel() for each in self._exchange.owing()},
            known={each.name: each.value.numel() for each in tensors},
            learners=self._reducer.adaptations,
            numbers={each.name: each.number for each in tensors},
        )

    def _progress(self) -> Progress:
        return Progress(self._reducer.step, self._exchange.stream.number)

    def _resume(self, progress: Progress) -> None:
        self._reducer.step = progress.step
        self._exchange.stream.become(progress.stream)
        self._reducer.seed = self._exchange.stream.seed
