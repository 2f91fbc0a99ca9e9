"""Who runs jobs over links: the calling thread (`Inline`), or threads of their own (`lanes.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.transport.device import Device, Taken
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
        with self._link.entered():
            done.set_result(job(self._link))
        return done


def join(futures: Sequence[Future[Any]], finish: Callable[[list[Any]], Any]) -> Future[Any]:
    """A future of what `finish` makes of the results of `futures`, or of the first error."""

    def collected(all_done: Future[list[Future[Any]]]) -> Any:
        return finish(_results(all_done))

    return torch.futures.collect_all(list(futures)).then(collected)


def give_back(
    futures: Sequence[Future[Any]],
    finish: Callable[[list[Any]], Any],
    taken: Taken,
    device: Device,
) -> Future[Tensor]:
    """A future of the tensor that was taken, once `finish` was told the results of `futures`."""
    done = device.future()

    def collected(all_done: Future[list[Future[Any]]]) -> None:
        try:
            finish(_results(all_done))
            device.give(taken, done)
        except BaseException as error:  # or who waits would wait for ever
            done.set_result(error)

    torch.futures.collect_all(list(futures)).then(collected)
    return done.then(lambda given: _raised(given.value()))


def _results(all_done: Future[list[Future[Any]]]) -> list[Any]:
    return [_raised(done.value()) for done in all_done.value()]


def _raised(result: Any) -> Any:
    """`result`, or the error that it is: set as an error of a torch future it loses its text."""
    if isinstance(result, BaseException):
        raise result
    return result
