"""Asynchronous training: workers that wait for nobody, and a server beside the first of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.algorithms.asynchronous.settings import AsyncSettings
from gradwire.algorithms.asynchronous.worker import AsyncWorker
from gradwire.lab.algorithms.async_server import Outcome, ServerProcess
from gradwire.lab.algorithms.base import Algorithm, Course, Replica, Start, Trained
from gradwire.lab.measure import Row
from gradwire.reduction.policy import MIN_NUMEL
from gradwire.reduction.stats import Stats

_logger = logging.getLogger(__name__)

PATIENCE_S = 60.0  # a server of the lab that is gone does not come back


@dataclass(frozen=True)
class Push:
    """One of a worker's: the version that it led to, its loss, and totals so far but time."""

    version: int
    row: Row


class AsyncReplica(Replica):
    """A worker of the server. A step of the lab is as many pushes as there are workers."""

    def __init__(self, start: Start, settings: Async) -> None:
        task, run = start.task, start.settings
        torch.manual_seed(run.seed)
        self.model = task.model()
        self._loss, self._workers, self._steps = task.loss, run.workers, run.steps
        self._server = ServerProcess(start, settings) if dist.get_rank() == 0 else None
        address = _from_first(None if self._server is None else self._server.address)
        self._worker = AsyncWorker(
            self.model,
            start.codec,
            address,
            name=f"rank {dist.get_rank()}",
            min_numel=settings.min_numel,
            patience=PATIENCE_S,
        )
        self._is_alone = False

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        loss = self._loss(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._is_alone:
            self.model.zero_grad()
        else:
            self._worker.step()
        return loss.item()

    def train(self, course: Course) -> Trained:
        """Push until the server has what all workers would push in `steps` steps."""
        pushes: list[Push] = []
        dist.barrier()
        if self._server is not None:
            self._server.begins_now()
        while not self._worker.done:
            loss, stats = self.step(*next(course.batches)), self.stats()
            if not self._worker.done:
                nbytes = stats.bytes_sent + stats.counts["bytes_received"]
                spent = (stats.encode_s, stats.comm_s, stats.decode_s)
                pushes.append(Push(self._worker.version, Row(loss, nbytes, 0.0, *spent)))
                course.tell(min(self._worker.version // self._workers, course.steps), loss)
        outcome = Outcome(*_from_first(self._server and self._server.outcome()))
        _logger.info(outcome.words)
        rows = rounds(pushes, self._workers, outcome.seconds)
        return Trained(rows, [{}] * len(rows), outcome.scores)

    @contextmanager
    def alone(self) -> Iterator[None]:
        self._is_alone = True
        yield
        self._is_alone = False

    def stats(self) -> Stats:
        return self._worker.stats()

    def close(self) -> None:
        self._worker.close()
        if self._server is not None:
            self._server.close()


@dataclass(frozen=True)
class Async(AsyncSettings, Algorithm):
    """Every worker's gradients make steps as they come, of 1 / workers of the learning rate.

    Parameters with fewer than `min_numel` values travel raw.
    """

    min_numel: int = MIN_NUMEL

    def start(self, start: Start) -> Replica:
        return AsyncReplica(start, self)


def rounds(pushes: Sequence[Push], workers: int, seconds: Sequence[float]) -> list[Row]:
    """A row for each round of as many versions as there are workers, which ended at `seconds`.

    Losses are means of what this worker pushed in a round; if that is nothing, the one before.

    >>> pushes = [Push(version, Row(version, 10 * version, 0, 0, 0, 0)) for version in (1, 2, 6)]
    >>> [(row.loss, row.bytes, row.seconds) for row in rounds(pushes, 2, [0.1, 0.2, 0.3])]
    [(1.5, 20, 0.1), (1.5, 20, 0.2), (6.0, 60, 0.3)]
    """
    first = pushes[0].row.loss if pushes else 0.0
    rows, last = [], Row(first, 0, 0, 0, 0, 0)
    for number, when in enumerate(seconds):
        start, end = number * workers, (number + 1) * workers
        mine = [push.row for push in pushes if start < push.version <= end]
        loss = sum(row.loss for row in mine) / len(mine) if mine else last.loss
        last = (mine[-1] if mine else last)._replace(loss=loss, seconds=when)
        rows.append(last)
    return rows


def _from_first(said: Any) -> Any:
    """What the first worker says."""
    everyone = [said]
    dist.broadcast_object_list(everyone)
    return everyone[0]
