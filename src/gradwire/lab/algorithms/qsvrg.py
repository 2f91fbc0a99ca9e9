"""QSVRG, on whatever a task trains: its guarantee is for convex losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.algorithms.qsvrg import QSVRG
from gradwire.lab.algorithms.base import Algorithm, Replica, Start
from gradwire.reduction.stats import Stats


class QSVRGReplica(Replica):
    """A model and this worker's share of the examples, from which the optimizer draws its own.

    A step is an inner one. The batches of the lab serve to measure how long computing takes.
    """

    def __init__(self, start: Start, inner: int, l2: float) -> None:
        task, run, train = start.task, start.settings, start.data.train
        torch.manual_seed(run.seed)
        self.model = task.model()
        count = len(train) // run.workers
        mine = torch.arange(count) * run.workers + dist.get_rank()
        self._loss = task.loss
        self._is_alone = False

        def loss(chosen: Tensor) -> Tensor:
            own = mine[chosen]
            return task.loss(self.model(train.inputs[own]), train.targets[own])

        self._optimizer = QSVRG(
            self.model.parameters(), loss, count, lr=run.lr, inner_steps=inner, batch=run.batch,
            l2=l2, codec=start.codec, seed=run.seed,
        )  # fmt: skip

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        if not self._is_alone:
            return self._optimizer.step()
        for _ in range(2):  # at x and at y
            loss = self._loss(self.model(inputs), targets)
            torch.autograd.grad(loss, list(self.model.parameters()))
        return loss.item()

    @contextmanager
    def alone(self) -> Iterator[None]:
        self._is_alone = True
        yield
        self._is_alone = False

    def stats(self) -> Stats:
        return self._optimizer.stats()

    def close(self) -> None:
        return


@dataclass(frozen=True)
class Qsvrg(Algorithm):
    """Epochs of inner steps that send variance-reduced directions.

    inner: inner steps of an epoch, the paper's T.
    l2: l2 / 2 times the squared norm of the parameters is added to the loss.
    """

    inner: int = 100
    l2: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.inner, int) or self.inner < 1:
            raise ValueError(f"`inner` must be an integer of at least 1, got {self.inner!r}.")
        if not isinstance(self.l2, int | float) or not 0 <= self.l2 < float("inf"):
            raise ValueError(f"`l2` must be at least 0 and finite, got {self.l2!r}.")

    def start(self, start: Start) -> Replica:
        return QSVRGReplica(start, self.inner, self.l2)
