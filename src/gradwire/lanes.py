"""Worker threads that pipeline: while one has a chunk on the wire, others encode and decode.

A lane is a thread that runs its jobs one after the other, over a link of its own. Jobs are dealt
to the lanes in turn, so if every rank submits the same jobs in the same order, every process group
sees the same collectives in the same order on all ranks, whatever the threads do in between.
(A collective started from a callback of another one deadlocks gloo, which has two threads.)
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.futures import Future

from gradwire.codecs import rooms
from gradwire.link import Link, LinkError
from gradwire.turns import Turn, Turns

Job = Callable[[Link], Any]
_Item = tuple[Job, Turn | None, Future[Any]]
_FAILURE = "gradwire failure"
_EXIT_S = 2.0
"""How long the end of the interpreter may wait for a lane."""


class Lanes:
    """FIFO threads, one for each link. After a job has failed, all later ones fail alike.

    No worker is left waiting: every lane then leaves its group, which closes its connections, and
    the error is put into the store that the workers share, for those who find them closed.
    """

    def __init__(self, links: Sequence[Link], name: str = "gradwire") -> None:
        assert links[0].group is not None
        self.links = links
        self._store = links[0].group.get_group_store()
        self._queues: list[queue.SimpleQueue[_Item | None]] = [queue.SimpleQueue() for _ in links]
        self._next = 0
        self._turns = Turns()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=pair, name=f"{name}-{i}", daemon=True)
            for i, pair in enumerate(zip(links, self._queues, strict=True))
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self._stop, timeout=_EXIT_S)

    def submit(self, job: Job, done: Future[Any] | None = None) -> Future[Any]:
        """Queue `job` on the next lane. `done`, made if not given, gets its result or its error.

        The error is the future's *value*; `join` raises it.
        """
        if not self._threads[0].is_alive():
            raise RuntimeError("this gradwire handle is closed; attach to a new DDP module.")
        done = Future() if done is None else done
        self._queues[self._next].put((job, self._turns.make(), done))
        self._next = (self._next + 1) % len(self._queues)
        return done

    def fail(self, error: BaseException) -> None:
        """Let all jobs fail from now on, here and on the other workers."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = self._explained(error)
        for jobs in self._queues:  # wakes lanes that have nothing to do
            jobs.put((lambda link: None, None, Future()))

    def close(self) -> None:
        """Finish the queued jobs, end the threads and leave the groups."""
        atexit.unregister(self._stop)
        self._stop()
        for link in self.links:
            link.leave()

    def _stop(self, timeout: float | None = None) -> None:
        for jobs in self._queues:
            jobs.put(None)
        for thread in self._threads:
            thread.join(timeout)

    def _run(self, link: Link, jobs: queue.SimpleQueue[_Item | None]) -> None:
        while (item := jobs.get()) is not None:
            job, link.turn, done = item
            result = self._attempt(job, link)
            if link.turn is not None:
                link.turn.end()
            if self._failure is not None:
                link.leave()
            done.set_result(result)

    def _attempt(self, job: Job, link: Link) -> Any:
        if self._failure is None:
            try:
                result = job(link)
                link.codec_nbytes = rooms.held_nbytes()
                return result
            except BaseException as error:  # raised again where the future is waited for
                self.fail(error)
        return self._failure

    def _explained(self, error: BaseException) -> BaseException:
        """The error, with what another worker says of it if that was the first to fail."""
        try:
            if not isinstance(error, LinkError):
                self._store.set(_FAILURE, str(error))
                return error
            known = self._store.check([_FAILURE])
            cause = self._store.get(_FAILURE).decode() if known else None
        except RuntimeError:  # the worker that kept the store is gone
            cause = None
        rank = self.links[0].rank
        if cause is None:
            return RuntimeError(
                f"rank {rank} has lost another worker, which died, stopped or took longer than the "
                f"timeout of the process group; its own log says why. {error}"
            )
        return RuntimeError(f"rank {rank} stops because another worker has failed: {cause}")


def join(futures: Sequence[Future[Any]], finish: Callable[[list[Any]], Any]) -> Future[Any]:
    """A future of what `finish` makes of the results of `futures`, or of the first error."""

    def collected(all_done: Future[list[Future[Any]]]) -> Any:
        results = [done.value() for done in all_done.value()]
        for result in results:  # an error set on a torch future loses its text; raised here not
            if isinstance(result, BaseException):
                raise result
        return finish(results)

    return torch.futures.collect_all(list(futures)).then(collected)
