"""From what the user asked for to `Settings`, or to a sentence that says what is wrong with it."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.lab.links.shape import Shape
from gradwire.lab.records import SYNC, Settings
from gradwire.terminal.output import (
    check_at_least_one,
    check_codecs,
    check_seed,
    check_threads,
    counted,
)

if TYPE_CHECKING:
    from gradwire.lab.tasks import Score

DEFAULT_WORKERS = 4
MOST_LINKED = 200
EVALUATIONS, TARGET_EVALUATIONS = 20, 50  # in a run, unless the user says otherwise
LEAST_STEPS = 10  # between two of them, if no target needs more


@dataclass(frozen=True)
class Request:
    """The command line; None leaves the choice to the task."""

    codecs: tuple[str, ...]
    task: str
    workers: int | None
    steps: int | None
    epochs: float | None
    batch: int | None
    lr: float | None
    seed: int
    threads: int
    data: Path | None
    link: str | None = None
    target: float | None = None
    eval_every: int | None = None
    algorithms: tuple[str, ...] = (SYNC,)
    slow: float = 1.0

    def shape(self) -> Shape | None:
        """The link, which must be prepared before anything else. Raises `ValueError`."""
        if self.link is None:
            return None
        if torchrun_workers():
            raise ValueError(
                "`--link` joins workers that are started here, but torchrun started these; "
                "leave out one of the two."
            )
        if (self.workers or DEFAULT_WORKERS) > MOST_LINKED:
            raise ValueError(
                f"`--link` joins at most {counted(MOST_LINKED, 'worker')}, got {self.workers}."
            )
        return Shape.parse(self.link)

    def settings(self) -> Settings:
        """Fill in what was left open. Raises `ValueError` if the request cannot be met."""
        from gradwire.lab.algorithms import parse_algorithm
        from gradwire.lab.tasks import TASKS

        if self.task not in TASKS:
            raise ValueError(f"`--task` must be one of {', '.join(TASKS)}, got {self.task}.")
        check_codecs(self.codecs, auto=True)
        for spec in self.algorithms:
            parse_algorithm(spec)
        task = TASKS[self.task]
        workers = self._num_workers()
        batch = task.batch if self.batch is None else self.batch
        lr = task.lr if self.lr is None else self.lr
        check_at_least_one(workers=workers, batch=batch)
        check_threads(self.threads)
        _check_positive(lr=lr, epochs=1 if self.epochs is None else self.epochs)
        check_seed(self.seed)
        _check_slow(self.slow, workers)
        if self.target is not None:
            _check_target(self.target, task.score)
        steps = self._num_steps(task.steps, len(task.data(self.data).train), workers * batch)
        return Settings(
            self.task, self.codecs, workers, steps, batch, lr, self.seed, self.threads, self.data,
            self.shape(), self.target, self._eval_every(steps), self.algorithms, self.slow,
        )  # fmt: skip

    def _eval_every(self, steps: int) -> int:
        """Often enough for a curve, and for a target often enough to tell when it was reached."""
        if self.eval_every is not None:
            check_at_least_one(**{"eval-every": self.eval_every})
            return self.eval_every
        if self.target is None:
            return max(LEAST_STEPS, steps // EVALUATIONS)
        return max(1, steps // TARGET_EVALUATIONS)

    def _num_workers(self) -> int:
        started = torchrun_workers()
        if started and self.workers not in (None, started):
            raise ValueError(
                f"`--workers` is {self.workers}, but torchrun started {started}; leave it out."
            )
        return started or (DEFAULT_WORKERS if self.workers is None else self.workers)

    def _num_steps(self, default: int, examples: int, examples_per_step: int) -> int:
        if examples_per_step > examples:
            raise ValueError(
                f"a step takes {counted(examples_per_step, 'example')} (`--workers` times "
                "`--batch`), but "
                f"there are only {examples:,} to train on; lower one of the two."
            )
        if self.steps is not None and self.epochs is not None:
            raise ValueError("`--steps` and `--epochs` say the same thing; give one of them.")
        if self.epochs is not None:
            return self._steps_of_epochs(self.epochs, examples // examples_per_step)
        steps = default if self.steps is None else self.steps
        check_at_least_one(steps=steps)
        return steps

    def _steps_of_epochs(self, epochs: float, steps_per_epoch: int) -> int:
        steps = round(epochs * steps_per_epoch)
        if steps < 1:
            raise ValueError(
                f"`--epochs {epochs:g}` is less than a step, since an epoch has "
                f"{counted(steps_per_epoch, 'step')}; give more, or say `--steps 1`."
            )
        return steps


def torchrun_workers() -> int | None:
    """Return how many workers torchrun started, None if it did not start this process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return int(os.environ["WORLD_SIZE"])


def is_first_worker() -> bool:
    """Is this the process that speaks to the user? Under torchrun, only one does."""
    return torchrun_workers() is None or os.environ["RANK"] == "0"


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"`--{name}` must be positive and finite, got {number:g}.")


def _check_slow(slow: float, workers: int) -> None:
    if not 1 <= slow < math.inf:
        raise ValueError(f"`--slow` must be at least 1, and finite, got {slow:g}.")
    if slow > 1 and workers == 1:
        raise ValueError("`--slow` slows one of several workers, but there is only one.")


def _check_target(target: float, score: Score) -> None:
    """An accuracy is a share; other scores are positive."""
    most = 1.0 if score.higher_is_better else math.inf
    if not 0 < target <= most or math.isinf(target):
        allowed = "above 0 and at most 1" if score.higher_is_better else "positive and finite"
        raise ValueError(
            f"`--target` is {score.name.replace('_', ' ')} here and must be {allowed}, "
            f"got {target:g}."
        )
