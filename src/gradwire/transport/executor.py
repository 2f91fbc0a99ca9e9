"""Who runs jobs over links: the calling thread (`Inline`), or threads of their own (`lanes.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.futures import Future

from gradwire import scratch
from gradwire.transport.link import Link

Job = Callable[[Link], Any]


class Executor(Protocol):
    """Runs jobs; if every rank submits the same ones in the same order, they meet."""

    def submit(self, job: Job, done: Future[Any] | None = None) -> Future[Any]:
        """Run `job`, now or later. `done`, made if not given, gets its result or its error."""


class Inline:
    """Runs each job here and now, over one link; its errors are raised here and now too."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def submit(self, job: Job, done: Future[Any] | None = None) -> Future[Any]:
        done = Future() if done is None else done
        with scratch.using(self._link.scratch):
            done.set_result(job(self._link))
        return done


def join(futures: Sequence[Future[Any]], finish: Callable[[list[Any]], Any]) -> Future[Any]:
    """A future of what `finish` makes of the results of `futures`, or of the first error."""

    def collected(all_done: Future[list[Future[Any]]]) -> Any:
        results = [done.value() for done in all_done.value()]
        for result in results:  # an error set on a torch future loses its text; raised here not
            if isinstance(result, BaseException):
                raise result
        return finish(results)

    return torch.futures.collect_all(list(futures)).then(collected)
