"""What `auto` works with, and where it stands: the same on every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwire.adapters.ddp.auto.notes import Notes, Samples
from gradwire.codecs import parse
from gradwire.planner.auto.facts import RAW, Assignment
from gradwire.planner.auto.records import Verdict
from gradwire.planner.auto.settings import Auto
from gradwire.reduction.reducer import Reducer
from gradwire.transport.link import Link

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """What is to be done in a step beside exchanging gradients.

    timed: note when its buckets are ready, and when it is over.
    samples: where samples of its gradients go.
    job: what is done at its end, when no lane has anything else to do.
    """

    timed: bool = False
    samples: Samples | None = None
    job: Callable[[Link, Notes], Any] | None = None


@dataclass
class Flight:
    """One attachment of `auto`.

    sizes: of the layers that it plans for, by number.
    cores: those of this worker, if all workers of its machine share them evenly.
    plan: what the next step goes by.
    verdict, look_at: what was decided last, and the step to look again at.
    doing: what it is about, in words, while nothing is decided.
    """

    auto: Auto
    reducer: Reducer
    links: Sequence[Link]
    sizes: Mapping[int, int]
    cores: float
    plan: Assignment = field(default=RAW, init=False)
    verdict: Verdict | None = None
    look_at: int = 0
    doing: str = ""

    @property
    def is_futile(self) -> bool:
        """Is there nothing to plan?"""
        return self.reducer.link.size == 1 or not self.sizes

    def adopt(self, plan: Assignment) -> None:
        """Let the next steps go by `plan`."""
        self.reducer.adopt({i: parse(plan.by_layer.get(i, "none")) for i in self.sizes})
        self.plan = plan

    def settle(self, chosen: Verdict, look_at: int) -> None:
        """Go by `chosen` until it is time to look again."""
        self.adopt(chosen.plan)
        self.verdict, self.look_at, self.doing = chosen, look_at, ""

    def say(self, words: str) -> None:
        """Log it, on one rank."""
        if self.reducer.link.rank == 0:
            _logger.info("auto: step %d: %s", self.reducer.step, words)
