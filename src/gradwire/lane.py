"""A worker thread that runs jobs one after the other, in the order they came.

A second collective started from a callback of the first deadlocks gloo, which has two threads.
A lane issues them from a thread of its own, over a process group of its own, so that every rank
issues the same collectives in the same order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch


class Lane:
    """One FIFO thread. After a job has failed, every later one fails with the same error."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Any] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> torch.futures.Future[Any]:
        """Queue `job`; the future gives its result or raises its error with its own text."""
        if not self._thread.is_alive():
            raise RuntimeError("this gradwire handle is closed; attach to a new DDP module.")
        done: torch.futures.Future[Any] = torch.futures.Future()
        self._jobs.put((job, done))
        return done.then(_value_or_raise)

    def close(self) -> None:
        """Finish the queued jobs and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            done.set_result(self._attempt(job))

    def _attempt(self, job: Callable[[], Any]) -> Any:
        if self._failure is not None:
            return self._failure
        try:
            return job()
        except BaseException as error:  # it is raised again where the future is waited for
            self._failure = error
            return error


def _value_or_raise(done: torch.futures.Future[Any]) -> Any:
    """An error set on a torch future loses its text; raised from a callback it keeps it."""
    value = done.value()
    if isinstance(value, BaseException):
        raise value
    return value
