"""Worker processes that cannot outlive the run: not its end, its interruption or its death.

The parent holds one pipe per worker. A worker that dies closes its end, which is how the parent
notices, whatever the cause; the parent then kills the others, who may be waiting for the dead
one in a collective that nothing else would end. The other way round, a worker whose parent is
gone ends itself.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import cast

import torch.distributed as dist

from gradwire.lab.links.places import Place, places
from gradwire.lab.links.shape import Shape
from gradwire.lab.parents import end_with_parent
from gradwire.lab.records import Event, Listener, ignore

Job = Callable[[Listener], None]
AFTERMATH_S = 0.3  # how long to listen for who failed first


class WorkerError(RuntimeError):
    """A worker died, or raised; the message says which one and how."""


@dataclass(frozen=True)
class Failed:
    """How a worker failed. The clock is one for all processes, so the first can be told."""

    at: float
    how: str


@dataclass(frozen=True)
class Done:
    """The worker's job is done."""


@dataclass(frozen=True)
class Seat:
    """What a worker is told when it starts: who it is, where, and whether its events are heard."""

    rank: int
    num_workers: int
    place: Place
    backend: str
    speaks: bool


@dataclass(frozen=True)
class Worker:
    """One process, as its parent sees it."""

    rank: int
    process: BaseProcess
    pipe: Connection

    def receive(self) -> Event | Failed | Done:
        """Return the next message. Death without last words comes before all other failures."""
        try:
            message: Event | Failed | Done = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(AFTERMATH_S)
            return Failed(-math.inf, _death(self.process.exitcode))
        return message


def run(
    job: Job, num_workers: int, listener: Listener, shape: Shape | None = None, *,
    backend: str = "gloo", all_speak: bool = False,
) -> None:  # fmt: skip
    """Run `job` on `num_workers` fresh processes; rank 0's events, or all, reach `listener`.

    They are joined by links of that shape, or by loopback. `job` must be picklable. Raises
    `WorkerError` if a worker fails. However this function ends, the workers have ended before it.
    """
    workers: list[Worker] = []
    with places(num_workers, shape) as spots:
        seats = [
            Seat(rank, num_workers, place, backend, rank == 0 or all_speak)
            for rank, place in enumerate(spots)
        ]
        try:
            with _interrupts_held():
                workers.extend(_start(job, seat) for seat in seats)
            _watch(workers, listener)
        finally:
            for worker in workers:
                worker.process.kill()
            for worker in workers:
                worker.process.join()


def run_under_torchrun(job: Job, listener: Listener) -> None:
    """Run `job` as one of the processes that torchrun started; rank 0's events reach `listener`."""
    dist.init_process_group("gloo")
    job(listener if dist.get_rank() == 0 else ignore)
    dist.destroy_process_group()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes in here to make them deaf to Ctrl-C, which is the parent's to act on.

    The tracker must be there already: starting it would lift the block.
    """
    resource_tracker.ensure_running()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _start(job: Job, seat: Seat) -> Worker:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_main, args=(job, seat, sender))
    process.start()
    sender.close()
    return Worker(seat.rank, process, receiver)


def _watch(workers: Sequence[Worker], listener: Listener) -> None:
    """Pass events on until every worker is done; raise as soon as one fails."""
    running = {worker.pipe: worker for worker in workers}
    while running:
        for pipe in connection.wait(list(running)):
            worker = running[cast(Connection, pipe)]
            message = worker.receive()
            if isinstance(message, Failed):
                raise WorkerError(_cause(running.values(), {worker.rank: message}))
            if isinstance(message, Done):
                del running[worker.pipe]
            else:
                listener(message)


def _cause(workers: Iterable[Worker], failures: dict[int, Failed]) -> str:
    """Say who failed first: the others then fail too, in their collectives."""
    time.sleep(AFTERMATH_S)
    for worker in workers:
        while worker.rank not in failures and worker.pipe.poll():
            message = worker.receive()
            if isinstance(message, Done):
                break
            if isinstance(message, Failed):
                failures[worker.rank] = message
    rank, first = min(failures.items(), key=lambda item: item[1].at)
    return f"worker {rank} {first.how}"


def _death(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}."
    return f"ended before its work did, with exit code {exitcode}."


def _main(job: Job, seat: Seat, pipe: Connection) -> None:
    """Be a worker."""
    end_with_parent()
    try:
        seat.place.join(seat.rank, seat.num_workers, seat.backend)
        job(pipe.send if seat.speaks else ignore)
        dist.destroy_process_group()
        pipe.send(Done())
    except BaseException:
        pipe.send(Failed(time.monotonic(), f"failed:\n{traceback.format_exc()}"))
        sys.exit(1)
