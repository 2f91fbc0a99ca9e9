"""What an algorithm of the lab is: settings that users can spell, and what trains one worker."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor, nn

from gradwire.adapters.tensorboard import Writer
from gradwire.lab.data import Dataset
from gradwire.lab.measure import Row as Line
from gradwire.lab.records import Settings
from gradwire.lab.tasks import Task
from gradwire.reduction.plan import Row
from gradwire.reduction.stats import Stats


@dataclass(frozen=True)
class Start:
    """What every worker begins a run with."""

    task: Task
    settings: Settings
    codec: str
    data: Dataset


@dataclass(frozen=True)
class Course:
    """What a replica goes through, and whom it tells.

    batches: this worker's, for ever; a worker that is slow waits for each.
    tell: called with a step that is done and the loss of a batch.
    evaluate: the score and the loss of a model, which all workers compute together.
    """

    batches: Iterator[tuple[Tensor, Tensor]]
    steps: int
    eval_every: int
    tell: Callable[[int, float], None]
    evaluate: Callable[[nn.Module], tuple[float, float]]

    def evaluates_after(self, step: int) -> bool:
        """Is the model scored when so many steps are done?"""
        return step % self.eval_every == 0 or step == self.steps


@dataclass(frozen=True)
class Trained:
    """A line for each step, what the codec had learned before it, and scores by step."""

    lines: list[Line] = field(default_factory=list)
    learned: list[dict[str, str]] = field(default_factory=list)
    scores: list[tuple[int, float, float]] = field(default_factory=list)


class Replica(ABC):
    """One worker's share in a run: a freshly seeded model, its optimizer and the exchange."""

    model: nn.Module

    @abstractmethod
    def step(self, inputs: Tensor, targets: Tensor) -> float:
        """Train on one batch and return its loss."""

    @abstractmethod
    def alone(self) -> AbstractContextManager[None]:
        """In here steps exchange nothing: that is how long computing takes."""

    @abstractmethod
    def stats(self) -> Stats:
        """What was exchanged so far."""

    @abstractmethod
    def close(self) -> None:
        """Let go of threads and process groups."""

    def train(self, course: Course) -> Trained:
        """Make all steps. Workers go in step with each other, unless the algorithm knows better."""
        done, seconds, stats = Trained(), 0.0, self.stats()
        dist.barrier()
        for step in range(1, course.steps + 1):
            done.learned.append(stats.learned)
            start = time.perf_counter()
            loss = self.step(*next(course.batches))
            if step == course.steps:
                self.finish()
            seconds += time.perf_counter() - start
            stats = self.stats()
            spent = (stats.encode_s, stats.comm_s, stats.decode_s)
            done.lines.append(Line(loss, stats.bytes_sent, seconds, *spent))
            course.tell(step, loss)
            if course.evaluates_after(step):
                with self.judged() as model:
                    done.scores.append((step, *course.evaluate(model)))
        return done

    @contextmanager
    def judged(self) -> Iterator[nn.Module]:
        """The model to evaluate, the same on every worker."""
        yield self.model

    def finish(self) -> None:
        """Called after the last step: exchange what is still to be exchanged."""
        return

    def log_to(self, writer: Writer, every: int) -> None:
        """Tell `writer` of errors by layer every so many steps, if anything is known of them."""
        return

    def rows(self) -> Sequence[Row]:
        """What became of each parameter, if it is known."""
        return ()

    def num_values(self) -> int:
        """Count the values that are trained: a synchronous step exchanges as many."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


class Algorithm(ABC):
    """The settings of a way to train, a frozen dataclass; it starts replicas."""

    @abstractmethod
    def start(self, start: Start) -> Replica:
        """A replica for this worker. All workers call it at once."""
