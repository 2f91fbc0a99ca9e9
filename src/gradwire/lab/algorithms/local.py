"""Local training with outer steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from gradwire.adapters.tensorboard import Writer
from gradwire.algorithms.outer.settings import OuterSettings
from gradwire.algorithms.outer.steps import OuterSteps
from gradwire.lab.algorithms.base import Algorithm, Replica, Start
from gradwire.reduction.plan import Row
from gradwire.reduction.policy import MIN_NUMEL
from gradwire.reduction.stats import Stats


class LocalReplica(Replica):
    """A model of its own, whose changes are exchanged every so many steps."""

    def __init__(self, start: Start, settings: Local) -> None:
        task, run = start.task, start.settings
        self._settings = settings
        torch.manual_seed(run.seed)
        self.model = task.model()
        self._loss = task.loss
        options = asdict(settings)
        lr = options.pop("inner_lr") or run.lr
        self._outer = OuterSteps(self.model, start.codec, seed=run.seed, **options)
        self._optimizer, self._schedule = task.optimize(self.model.parameters(), lr, run.steps)
        self._is_alone = False

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self._optimizer.zero_grad()
        loss = self._loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._schedule.step()
        if not self._is_alone:
            self._outer.step()
        return loss.item()

    @contextmanager
    def alone(self) -> Iterator[None]:
        self._is_alone = True
        yield
        self._is_alone = False

    @contextmanager
    def judged(self) -> Iterator[nn.Module]:
        with self._outer.global_weights():
            yield self.model

    def finish(self) -> None:
        self._outer.finish()

    def stats(self) -> Stats:
        return self._outer.stats()

    def log_to(self, writer: Writer, every: int) -> None:
        exchanges = every * self._settings.fragments // self._settings.every
        self._outer.log_to(writer, every=max(exchanges, 1), layers=True)

    def rows(self) -> Sequence[Row]:
        return self._outer.plan().rows

    def close(self) -> None:
        self._outer.close()


@dataclass(frozen=True)
class Local(OuterSettings, Algorithm):
    """Steps without exchange, then an outer step with the mean change of the weights.

    Parameters with fewer than `min_numel` values travel raw. The optimizer has the learning rate
    `inner_lr`, by default that of the run: a worker's own batches are smaller than those of
    synchronous training, and want smaller steps.
    """

    min_numel: int = MIN_NUMEL
    inner_lr: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        lr = self.inner_lr
        if lr is not None and not (isinstance(lr, int | float) and 0 < lr < math.inf):
            raise ValueError(f"`inner_lr` must be positive and finite, got {lr!r}.")

    def start(self, start: Start) -> Replica:
        return LocalReplica(start, self)
