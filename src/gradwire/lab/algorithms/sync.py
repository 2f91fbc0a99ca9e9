"""Synchronous training: DDP, with the codec attached."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.adapters.tensorboard import Writer
from gradwire.lab.algorithms.base import Algorithm, Replica, Start
from gradwire.reduction.plan import Row
from gradwire.reduction.stats import Stats


class SyncReplica(Replica):
    """A model under DDP with a codec attached."""

    def __init__(self, start: Start) -> None:
        task, settings = start.task, start.settings
        torch.manual_seed(settings.seed)
        self.model = task.model()
        self._loss = task.loss
        self._ddp = DistributedDataParallel(self.model)
        self._handle = gw.attach(self._ddp, start.codec, seed=settings.seed)
        self._optimizer, self._schedule = task.optimize(
            self._ddp.parameters(), settings.lr, settings.steps
        )

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self._optimizer.zero_grad()
        loss = self._loss(self._ddp(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._schedule.step()
        return loss.item()

    def alone(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def stats(self) -> Stats:
        return self._handle.stats()

    def log_to(self, writer: Writer, every: int) -> None:
        self._handle.log_to(writer, every=every, layers=True)

    def rows(self) -> Sequence[Row]:
        return self._handle.plan().rows

    def close(self) -> None:
        self._handle.close()


@dataclass(frozen=True)
class Sync(Algorithm):
    """The mean gradient of all workers, at every step."""

    def start(self, start: Start) -> Replica:
        return SyncReplica(start)
