"""Scalars of a handle over time, for TensorBoard or anything else with an `add_scalar`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from gradwire.collectives.parts import Part
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.stats import Stats
from gradwire.transport.link import ring_nbytes


class Writer(Protocol):
    """What is asked of a writer; `torch.utils.tensorboard.SummaryWriter` is one."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Record one number."""


class Log:
    """Writes means over `every` steps: bytes, their ratio to float32, and seconds by stage.

    With `nmse` also the error of the gradient in the last of these steps, over its energy: that
    less what this worker's own messages, as they were sent, say of it. With `layers`, by parameter
    too.
    """

    def __init__(
        self,
        writer: Writer,
        stats: Callable[[], Stats],
        reducer: Reducer,
        *,
        every: int,
        nmse: bool,
        layers: bool,
    ) -> None:
        if every < 1:
            raise ValueError(f"`every` must be at least 1 step, got {every}.")
        self._writer = writer
        self._stats = stats
        self._reducer = reducer
        self._every = every
        self._measures = nmse or layers
        self._layers = layers
        self._written = stats()
        self._ended = reducer.step
        self._forget()

    def step_begins(self) -> None:
        """Take note of a new step; all the work of earlier ones is done."""
        self.step_ended()
        self._ended = self._reducer.step + 1
        self._steps += 1

    def bucket(self, parts: Sequence[Part]) -> list[Part]:
        """See gradients that are about to be reduced; they may come back with somebody to watch."""
        self._values += sum(part.values.numel() for part in parts)
        if not self._measures or self._ended % self._every:
            return list(parts)
        watches = {part.name or str(part.tensor): Watch(part) for part in parts}
        self._watches |= watches
        return [replace(p, watch=w) for p, w in zip(parts, watches.values(), strict=True)]

    def step_ended(self) -> None:
        """Write, if it is time to: all the work of earlier steps is done."""
        if self._steps and self._ended % self._every == 0:
            for tag, value in (self._means() | self._nmse()).items():
                self._writer.add_scalar(f"gradwire/{tag}", value, self._ended)
            self._written = self._stats()
            self._forget()

    def _forget(self) -> None:
        self._steps = self._values = 0
        self._watches: dict[str, Watch] = {}

    def _means(self) -> dict[str, float]:
        now, before = self._stats(), self._written
        sent = now.bytes_sent - before.bytes_sent
        stages = ("encode_s", "comm_s", "decode_s")
        return {
            "bytes_per_step": sent / self._steps,
            "of_float32": sent / max(ring_nbytes(4 * self._values, self._reducer.link.size), 1),
            **{name: (getattr(now, name) - getattr(before, name)) / self._steps for name in stages},
        }

    def _nmse(self) -> dict[str, float]:
        if not self._watches:
            return {}
        errors = {name: watch.error() for name, watch in self._watches.items()}
        lost, whole = (sum(column) for column in zip(*errors.values(), strict=True))
        found = {"nmse": lost / whole if whole else 0.0}
        if self._layers:
            for name, (lost, whole) in errors.items():
                found[f"nmse/{name}"] = lost / whole if whole else 0.0
        return found


class Watch:
    """Is told by the lanes what is lost of the slices of a part. What travels raw loses nothing."""

    def __init__(self, part: Part) -> None:
        self._raw = energy(part.values)
        self._slices: dict[int, tuple[float, float]] = {}

    def __call__(self, start: int, source: Tensor, lost: Tensor) -> None:
        """Take note of a slice."""
        self._slices[start] = energy(lost), energy(source)

    def error(self) -> tuple[float, float]:
        """The squared norms of what was lost of the gradient, and of the gradient."""
        if not self._slices:
            return 0.0, self._raw
        lost, whole = zip(*(self._slices[start] for start in sorted(self._slices)), strict=True)
        return sum(lost), sum(whole)


def energy(values: Tensor) -> float:
    """The squared norm, to be shown and not to be sent."""
    return float(values.double().square().sum())
