"""Gradients on a GPU, and who works on them: `device.py` says what is to be ordered, and why.

Side     a queue beside that of the backward pass: DDP over NCCL
Here     the queue of whoever calls: FSDP, which has queues of its own, and `gw.all_reduce`
Staged   without NCCL: copied to pinned memory, reduced by the CPU, copied back
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.transport import groups
from gradwire.transport.device import HOST, Device, Taken, nothing

CUDA: Any = torch.cuda
"""Tests put a model of it here."""


class _GPU:
    """What all have in common."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def future(self) -> Future[Any]:
        """It keeps events: who waits for it lets a queue wait, not a thread."""
        return Future(devices=[self._device])

    def _current(self) -> Any:
        return CUDA.current_stream(self._device)


class Side(_GPU):
    """A GPU, on a queue of its own. Whatever is allocated inside belongs to that."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.memory = device
        self._stream = CUDA.Stream(device)

    def take(self, tensor: Tensor) -> Taken:
        event = self._current().record_event()
        tensor.record_stream(self._stream)
        return Taken(tensor, tensor, partial(self._stream.wait_event, event))

    def entered(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = CUDA.stream(self._stream)
        return context

    def give(self, taken: Taken, done: Future[Any]) -> None:
        with self.entered():  # the event that `done` keeps is recorded on this queue
            done.set_result(taken.tensor)

    def drain(self) -> None:
        self._stream.synchronize()


class Here(_GPU):
    """A GPU, on the queue of whoever calls, which may be another one each time."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.memory = device
        self._last: Any = None

    def take(self, tensor: Tensor) -> Taken:
        tensor.record_stream(self._current())
        return Taken(tensor, tensor, nothing)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Memory that is used again may have been in use on another queue."""
        if self._last is not None:
            self._current().wait_event(self._last)
        yield
        self._last = self._current().record_event()

    def give(self, taken: Taken, done: Future[Any]) -> None:
        done.set_result(taken.tensor)

    def drain(self) -> None:
        if self._last is not None:
            self._last.synchronize()


class Staged(_GPU):
    """A GPU whose gradients are reduced by the CPU.

    Copies have a queue for each direction, so that none waits for one that is not due yet. It is
    the thread of a job that waits for its values, not the one that hands them in.
    """

    memory = torch.device("cpu")

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._down, self._up = CUDA.Stream(device), CUDA.Stream(device)

    def take(self, tensor: Tensor) -> Taken:
        values = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._down.wait_event(self._current().record_event())
        tensor.record_stream(self._down)
        copied = CUDA.Event(blocking=True)
        with CUDA.stream(self._down):
            values.copy_(tensor, non_blocking=True)
            self._down.record_event(copied)
        return Taken(tensor, values, copied.synchronize, copied)

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    def give(self, taken: Taken, done: Future[Any]) -> None:
        taken.tensor.record_stream(self._up)
        self._up.wait_event(taken.copied)
        with CUDA.stream(self._up):
            taken.tensor.copy_(taken.values, non_blocking=True)
            done.set_result(taken.tensor)

    def drain(self) -> None:
        self._up.synchronize()


def device_for(group: dist.ProcessGroup, memory: torch.device, *, beside: bool) -> Device:
    """How tensors in `memory` are reduced over `group`: `beside` other work, or as a part of it."""
    if memory.type == "cpu":
        return HOST
    backend = groups.backend_of(group, memory) if memory.type == "cuda" else None
    if backend == "nccl":
        return Side(memory) if beside else Here(memory)
    if backend == "gloo":
        return Staged(memory)
    raise NotImplementedError(
        f"gradwire reduces tensors on the CPU, and on CUDA over nccl or gloo; got {memory} over "
        f"{backend or 'this group'}. Pass a group of `dist.new_group(backend=...)`, or move them "
        "with `.cpu()`."
    )
