"""The server of an asynchronous run, in a process of its own beside the first worker.

It shares that worker's link. While workers train it only keeps the weights that are to be scored;
it scores them when all is done.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradwire.algorithms.asynchronous.pace import per_push
from gradwire.algorithms.asynchronous.server import AsyncServer
from gradwire.algorithms.asynchronous.settings import AsyncSettings
from gradwire.algorithms.asynchronous.statistics import ServerStats
from gradwire.algorithms.flat import Flat
from gradwire.lab.links.namespaces import address
from gradwire.lab.measure import evaluate_alone
from gradwire.lab.parents import end_with_parent
from gradwire.lab.tasks import TASKS
from gradwire.terminal.output import counted

if TYPE_CHECKING:
    from gradwire.lab.algorithms.base import Start
    from gradwire.lab.records import Settings

LOOK_S = 0.2  # how often it is looked whether the run was given up
LINGER_S = 120.0  # for a slow worker to hear that all is done


class Outcome(NamedTuple):
    """When each step was done, in seconds from the start, scores by step, and delays in words."""

    seconds: list[float]
    scores: list[tuple[int, float, float]]
    words: str


class ServerProcess:
    """The server, as the first worker sees it."""

    def __init__(self, start: Start, settings: AsyncSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        run = start.settings
        host = os.environ.get("MASTER_ADDR", "localhost") if run.link is None else address(0)
        arguments = (run, start.codec, asdict(settings), host, theirs)
        self._process = context.Process(target=_serve, args=arguments)
        self._process.start()
        theirs.close()
        self.address: str = self._pipe.recv()
        self._start = 0.0

    def begins_now(self) -> None:
        """Take the time. The clock is one for all processes of a machine."""
        self._start = time.perf_counter()

    def outcome(self) -> Outcome:
        """Wait for the end."""
        times, scores, words = self._pipe.recv()
        return Outcome([each - self._start for each in times], scores, words)

    def close(self) -> None:
        """End it, done or not."""
        self._pipe.close()
        self._process.join()


def _serve(
    run: Settings, codec: str, settings: dict[str, object], host: str, pipe: Connection
) -> None:
    """Be the server."""
    end_with_parent()
    torch.set_num_threads(run.threads)
    torch.manual_seed(run.seed)
    task = TASKS[run.task]
    model = task.model()
    optimizer, scheduler = task.optimize(model.parameters(), run.lr, run.steps * run.workers)
    _slow_down(optimizer, scheduler, run.workers)
    server = AsyncServer(
        model,
        optimizer,
        codec,
        address=f"{host}:0",
        scheduler=scheduler,
        seed=run.seed,
        max_workers=run.workers,
        **settings,  # type: ignore[arg-type]
    )
    pipe.send(server.address)
    flat = Flat(model.parameters())
    times, kept = _watch(server, run, flat, pipe)
    server.close(linger=LINGER_S)
    if len(times) < run.steps:
        return
    test, scores = task.data(run.data).test, []
    for step, weights in kept:
        flat.put(weights)
        scores.append((step, *evaluate_alone(model, task, test)))
    pipe.send((times, scores, in_words(server.stats())))


def _slow_down(optimizer: Optimizer, scheduler: LRScheduler, workers: int) -> None:
    """Let both be what they would be, had the schedule been made after `per_push`."""
    before = [group["lr"] for group in optimizer.param_groups]
    per_push(optimizer, workers)
    after = [group["lr"] for group in optimizer.param_groups]
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        scheduler.base_lrs[i] *= new / old


def _watch(
    server: AsyncServer, run: Settings, flat: Flat, pipe: Connection
) -> tuple[list[float], list[tuple[int, Tensor]]]:
    """When each step was done, and weights to score; fewer if the run was given up."""
    times: list[float] = []
    kept: list[tuple[int, Tensor]] = []
    for step in range(1, run.steps + 1):
        while server.version < step * run.workers:
            if pipe.poll():
                return times, kept
            server.serve(step * run.workers, seconds=LOOK_S)
        times.append(time.perf_counter())
        if step % run.eval_every == 0 or step == run.steps:
            kept.append((step, flat.get()))
    return times, kept


def in_words(stats: ServerStats) -> str:
    """How late gradients were."""
    total = sum(stats.delays.values())
    mean = sum(delay * count for delay, count in stats.delays.items()) / max(total, 1)
    return (
        f"{counted(total, 'gradient')} counted, {mean:.1f} steps late on average and at most "
        f"{max(stats.delays, default=0)}; {stats.stale} came too late to count."
    )
