"""What an algorithm of the lab is: settings that users can spell, and what trains one worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from gradwire.adapters.tensorboard import Writer
from gradwire.lab.data import Dataset
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
