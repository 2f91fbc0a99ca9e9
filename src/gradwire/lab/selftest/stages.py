"""The stages of the selftest, one after the other, each by worker processes of its own.

So a kernel that breaks the context of a GPU, or ends the process, spoils no other stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from gradwire.lab import workers
from gradwire.lab.selftest import collectives, kernels, speed, training
from gradwire.lab.selftest.plan import STAGES, Plan
from gradwire.lab.selftest.records import (
    Begun,
    Checked,
    Failure,
    Measured,
    Outcome,
    Said,
    Say,
    Trained,
)

Tell = Callable[[float, str], None]
"""Told how much of a stage is done, and what is under way."""


def stages(plan: Plan, tell: Tell) -> Iterator[Outcome]:
    """What comes of each stage that is asked for."""
    for name in STAGES:
        if plan.concerns(name):
            stage = Stage(plan, name, tell)
            start = time.perf_counter()
            _RUNS[name](stage)
            stage.close()
            stage.outcome.seconds = time.perf_counter() - start
            yield stage.outcome


class Stage:
    """Starts the workers of a stage and listens to them."""

    def __init__(self, plan: Plan, name: str, tell: Tell) -> None:
        self.plan, self.name = plan, name
        self.outcome = Outcome(name)
        self.trained: list[Trained] = []
        self._tell = tell
        self._total = self._heard = 0
        self._at_work: dict[int, str] = {}

    def run(self, job: Callable[[Say], None], total: int, **how: Any) -> None:
        """Let workers do `job`, who say so many times that they begin with something."""
        if not total:
            return
        self._total, self._heard = total, 0
        count = how.pop("workers", self.plan.workers)
        try:
            workers.run(cast(Any, job), count, cast(Any, self.hear), all_speak=True, **how)
        except workers.WorkerError as error:
            self.outcome.failures.append(self._death(str(error)))

    def hear(self, event: Said) -> None:
        """Take down what a worker says."""
        if isinstance(event, Begun):
            self._at_work[event.rank] = event.subject
            self._tell(self._heard / self._total, event.subject)
            self._heard += 1
        elif isinstance(event, Checked):
            self._take(event)
        elif isinstance(event, Trained):
            self.trained.append(event)
        elif isinstance(event, Measured):
            self.outcome.rows = event.rows

    def close(self) -> None:
        """A device that lacks everything has not passed."""
        outcome = self.outcome
        if outcome.missing and not outcome.cases and not outcome.failures:
            reason = next(iter(outcome.missing.values()))
            outcome.failures.append(Failure(self.name, f"nothing could be checked: {reason}"))

    def _take(self, checked: Checked) -> None:
        if checked.missing is not None:
            self.outcome.missing[checked.subject] = checked.missing
        if checked.cases:
            self.outcome.subjects.add(checked.subject)
        self.outcome.cases += checked.cases
        self.outcome.failures += checked.failures

    def _death(self, words: str) -> Failure:
        """Of a worker, with the last line of its words, and all of them for the report."""
        head, last = (words.strip().splitlines()[i] for i in (0, -1))
        what = head if head == last else f"{head} {last}"
        under_way = ", ".join(sorted(set(self._at_work.values()))) or "nothing"
        return Failure(self.name, f"{what} Under way: {under_way}.", {"words": words})


def _run_kernels(stage: Stage) -> None:
    stage.run(kernels.KernelCheck(stage.plan), len(kernels.names(stage.plan)))


def _run_collectives(stage: Stage) -> None:
    plan = stage.plan
    total = plan.workers * len(collectives.specs(plan))
    stage.run(collectives.CollectiveCheck(plan), total, backend=plan.backend)


def _run_training(stage: Stage) -> None:
    """By the reference kernels on the CPU, then on the device by its own."""
    plan = stage.plan
    total = plan.workers * len(training.specs(plan))
    stage.run(training.TrainingCheck(plan, by_reference=True), total)
    expected, stage.trained = stage.trained, []
    stage.run(training.TrainingCheck(plan, by_reference=False), total, backend=plan.backend)
    outcome, got = stage.outcome, sorted(stage.trained, key=lambda each: each.rank)
    outcome.subjects |= {each.subject for each in got}
    outcome.cases += len(got)
    outcome.failures += training.judge(expected, got, exact=plan.device == "cpu")


def _run_speed(stage: Stage) -> None:
    stage.run(speed.SpeedCheck(stage.plan), len(speed.specs(stage.plan)), workers=1)


_RUNS: dict[str, Callable[[Stage], None]] = {
    "kernels": _run_kernels,
    "collectives": _run_collectives,
    "training": _run_training,
    "speed": _run_speed,
}
