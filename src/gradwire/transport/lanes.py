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
import weakref
from collections.abc import Sequence
from typing import Any

from torch.futures import Future

from gradwire.transport.executor import Job
from gradwire.transport.link import Link, LinkError
from gradwire.transport.tickets import Ticket, Tickets

_Item = tuple[Job, Ticket, Future[Any]]
_Queue = queue.SimpleQueue[_Item | None]
_FAILURE = "gradwire failure"
_EXIT_S = 2.0
"""How long the end of the interpreter may wait for a lane."""


class Lanes:
    """FIFO threads, one for each link. After a job has failed, all later ones fail alike.

    The threads know nothing of this object: they end, and leave their groups, when it is closed or
    when nobody has it any more.
    """

    def __init__(self, links: Sequence[Link], name: str = "gradwire") -> None:
        self.links = links
        self._crew = _Crew(links, name)
        self._next = 0
        self._tickets = Tickets()
        weakref.finalize(self, self._crew.dismiss).atexit = False

    def submit(self, job: Job, done: Future[Any] | None = None) -> Future[Any]:
        """Queue `job` on the next lane. An error is the future's *value*; `join` raises it."""
        if not self._crew.is_working():
            raise RuntimeError("this gradwire handle is closed; attach to a new DDP module.")
        done = Future() if done is None else done
        self._crew.queues[self._next].put((job, self._tickets.make(), done))
        self._next = (self._next + 1) % len(self.links)
        return done

    def fail(self, error: BaseException) -> None:
        """Let all jobs fail from now on, here and on the other workers."""
        self._crew.fail(error)

    def close(self) -> None:
        """Finish the queued jobs, end the threads and leave the groups."""
        self._crew.dismiss()
        self._crew.wait()


class _Crew:
    """The threads of some lanes, and what they share.

    No worker is left waiting after a failure: every lane then leaves its group, which closes its
    connections, and the error is put into the store that the workers share, for those who find
    them closed.
    """

    def __init__(self, links: Sequence[Link], name: str) -> None:
        assert links[0].group is not None
        self.queues: list[_Queue] = [queue.SimpleQueue() for _ in links]
        self._rank = links[0].rank
        self._store = links[0].group.get_group_store()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=pair, name=f"{name}-{i}", daemon=True)
            for i, pair in enumerate(zip(links, self.queues, strict=True))
        ]
        for thread in self._threads:
            thread.start()
        _crews.add(self)

    def is_working(self) -> bool:
        """Is there anybody to take a job?"""
        return self._threads[0].is_alive()

    def dismiss(self) -> None:
        """Let the threads end when they have done what is queued. It does not wait."""
        for jobs in self.queues:
            jobs.put(None)

    def wait(self, timeout: float | None = None) -> None:
        """Return when all threads have ended, or have had `timeout` seconds each to do so."""
        for thread in self._threads:
            thread.join(timeout)

    def fail(self, error: BaseException) -> None:
        """Let all jobs fail from now on."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = self._explained(error)
        for jobs in self.queues:  # wakes lanes that have nothing to do
            jobs.put((lambda link: None, Tickets().make(), Future()))

    def _run(self, link: Link, jobs: _Queue) -> None:
        with link.entered():
            while self._do_next(link, jobs):
                pass
        if self._failure is None:
            link.device.drain()
        link.leave()

    def _do_next(self, link: Link, jobs: _Queue) -> bool:
        """Do one job, and keep nothing of it; False if there are no more."""
        item = jobs.get()
        if item is None:
            return False
        job, ticket, done = item
        result = self._attempt(job, link.holding(ticket))
        ticket.end()
        if self._failure is not None:
            link.leave()
        done.set_result(result)
        return True

    def _attempt(self, job: Job, link: Link) -> Any:
        if self._failure is None:
            try:
                return job(link)
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
        if cause is None:
            return RuntimeError(
                f"rank {self._rank} has lost another worker, which died, stopped or took longer "
                f"than the timeout of the process group; its own log says why. {error}"
            )
        return RuntimeError(f"rank {self._rank} stops because another worker has failed: {cause}")


_crews: weakref.WeakSet[_Crew] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A thread that is in a kernel when the interpreter goes would bring it down."""
    for crew in list(_crews):
        crew.dismiss()
        crew.wait(_EXIT_S)
