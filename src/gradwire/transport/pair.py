"""Two processes, joined by a gloo group of their own that concerns nobody else.

If one of the two dies, freezes or leaves, the other learns of it, or waits, and no third one does
either. What is private in PyTorch is used in this file and in `groups.py`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

_gloo: Any = c10d.ProcessGroupGloo

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class LostError(ConnectionError):
    """The other side died, left, or did not answer in time."""


class Pair:
    """One end, of rank 0 or 1. Both meet in `store`, which nobody else may use.

    host: where the other side is. If that is this machine, loopback is used, unless the user has
        named an interface (`GLOO_SOCKET_IFNAME`).
    timeout: seconds to wait for the other side to come.
    """

    def __init__(self, store: Store, rank: int, *, host: str, timeout: float) -> None:
        options = _gloo._Options()
        options._devices = [_device(host)]
        options._threads = 1
        options._timeout = timedelta(seconds=timeout)
        self._other = 1 - rank
        try:
            self._group = _gloo(store, rank, 2, options)
        except RuntimeError as error:
            raise LostError(_first_line(error)) from error

    def send(self, message: Tensor, timeout: float) -> None:
        """Send bytes (uint8); returns when they are handed over."""
        self._finish(self._group.send([message], self._other, 0), timeout)

    def receive(self, room: Tensor, timeout: float) -> None:
        """Wait for a message of at most the size of `room`, and write it to the start of that.

        A longer one ends this process: gloo has no other way out. A shorter one leaves the rest as
        it was, and does not say how long it is.
        """
        self._finish(self._group.recv([room], self._other, 0), timeout)

    def exchange(self, message: Tensor, room: Tensor, timeout: float) -> None:
        """Send, and wait for the answer, whose room is ready before it comes."""
        try:
            answer = self._group.recv([room], self._other, 0)
        except RuntimeError as error:
            raise LostError(_first_line(error)) from error
        self.send(message, timeout)
        self._finish(answer, timeout)

    @staticmethod
    def _finish(work: dist.Work, timeout: float) -> None:
        try:
            work.wait(timedelta(seconds=timeout))
        except RuntimeError as error:
            raise LostError(_first_line(error)) from error


def _device(host: str) -> object:
    if host in LOOPBACK and "GLOO_SOCKET_IFNAME" not in os.environ:
        return _gloo.create_device(hostname="127.0.0.1")
    return _gloo.create_default_device()


def _first_line(error: Exception) -> str:
    """What gloo says, without the place in its source and its advice.

    >>> _first_line(RuntimeError("[/src/pair.cc:9] Connection reset. This is typically caused by"))
    'Connection reset'
    """
    line = (str(error).splitlines() or [""])[0].rpartition("] ")[2]
    return line.partition(". This is typically")[0]
