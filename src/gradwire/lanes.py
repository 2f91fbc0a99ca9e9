"""Worker threads that pipeline: while one has a chunk on the wire, others encode and decode.

A lane is a thread that runs its jobs one after the other, over a link of its own. Jobs are dealt
to the lanes in turn, so if every rank submits the same jobs in the same order, every process group
sees the same collectives in the same order on all ranks, whatever the threads do in between.
(A collective started from a callback of another one deadlocks gloo, which has two threads.)
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.futures import Future

from gradwire.codecs import rooms
from gradwire.link import Link

Job = Callable[[Link], Any]


class Lanes:
    """FIFO threads, one for each link. After a job has failed, all later ones fail alike."""

    def __init__(self, links: Sequence[Link], name: str = "gradwire") -> None:
        self.links = links
        self._queues: list[queue.SimpleQueue[tuple[Job, Future[Any]] | None]]
        self._queues = [queue.SimpleQueue() for _ in links]
        self._turn = 0
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=pair, name=f"{name}-{i}", daemon=True)
            for i, pair in enumerate(zip(links, self._queues, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job, done: Future[Any] | None = None) -> Future[Any]:
        """Queue `job` on the next lane. `done`, made if not given, gets its result or its error.

        The error is the future's *value*; `join` raises it.
        """
        if not self._threads[0].is_alive():
            raise RuntimeError("this gradwire handle is closed; attach to a new DDP module.")
        done = Future() if done is None else done
        self._queues[self._turn].put((job, done))
        self._turn = (self._turn + 1) % len(self._queues)
        return done

    def close(self) -> None:
        """Finish the queued jobs and end the threads."""
        for jobs in self._queues:
            jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, link: Link, jobs: queue.SimpleQueue[tuple[Job, Future[Any]] | None]) -> None:
        while (item := jobs.get()) is not None:
            job, done = item
            done.set_result(self._attempt(job, link))

    def _attempt(self, job: Job, link: Link) -> Any:
        if self._failure is not None:
            return self._failure
        try:
            result = job(link)
            link.codec_nbytes = rooms.held_nbytes()
            return result
        except BaseException as error:  # raised again where the future is waited for
            self._failure = error
            return error


def join(futures: Sequence[Future[Any]], finish: Callable[[list[Any]], Any]) -> Future[Any]:
    """A future of what `finish` makes of the results of `futures`, or of the first error."""

    def collected(all_done: Future[list[Future[Any]]]) -> Any:
        results = [done.value() for done in all_done.value()]
        for result in results:  # an error set on a torch future loses its text; raised here not
            if isinstance(result, BaseException):
                raise result
        return finish(results)

    return torch.futures.collect_all(list(futures)).then(collected)
