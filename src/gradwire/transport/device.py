"""Where gradients are, where they are worked on, and what waits for what in between.

On the CPU work is done when a call returns. A GPU is handed work, by queues that it serves beside
each other (streams), and an order between two of them is an event: one queue records it, another
waits for it, and no thread of the host does either. Memory belongs to the queue it was allocated
on; another one that uses it says so (`record_stream`), or it might be given away too early.

Jobs, links and reducers are the same for all devices. What differs is in a `Device`: here is that
of the CPU, and in `gpu.py` are the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.futures import Future


@dataclass(frozen=True)
class Taken:
    """A tensor that jobs are to work on: `values`, when `ready` has been called.

    `ready` is called by each job, in its own thread, before it looks at them. `copied` is the event
    of a copy, if there is one.
    """

    tensor: Tensor
    values: Tensor
    ready: Callable[[], None]
    copied: Any = None


class Device(Protocol):
    """The order between who hands a tensor in, jobs, and who gets it back."""

    memory: torch.device
    """Where links and codecs have their memory, and kernels run."""

    def take(self, tensor: Tensor) -> Taken:
        """Hand a tensor in. It is not to be touched until it was given back."""

    def entered(self) -> AbstractContextManager[None]:
        """Inside, this thread does the work of jobs."""

    def future(self) -> Future[Any]:
        """Of a tensor that is given back; who waits for it may use the tensor."""

    def give(self, taken: Taken, done: Future[Any]) -> None:
        """Fulfil `done`, which `future` made, with the tensor, changed as `values` were."""

    def drain(self) -> None:
        """Return when all work is done; only who closes calls it."""


class Host:
    """The CPU: what was asked for is done."""

    memory = torch.device("cpu")

    def take(self, tensor: Tensor) -> Taken:
        return Taken(tensor, tensor, nothing)

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def future(self) -> Future[Any]:
        return Future()

    def give(self, taken: Taken, done: Future[Any]) -> None:
        done.set_result(taken.tensor)

    def drain(self) -> None:
        """Nothing is ever left to do."""


HOST = Host()


def nothing() -> None:
    """Nothing to wait for."""
