"""Scalars of a handle over time, for TensorBoard or anything else with an `add_scalar`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from gradwire.codec import Codec, Key
from gradwire.collectives import simulate
from gradwire.link import ring_nbytes
from gradwire.parts import Part
from gradwire.reducer import Reducer
from gradwire.stats import Stats


class Writer(Protocol):
    """What is asked of a writer; `torch.utils.tensorboard.SummaryWriter` is one."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Record one number."""


class Log:
    """Writes means over `every` steps: bytes, their ratio to float32, and seconds by stage.

    With `nmse` also the error of the gradient in the last of these steps, over its energy: that of
    this worker's own message, encoded once more and decoded alone. With `layers`, by parameter too.
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

    def bucket(self, parts: Sequence[Part]) -> None:
        """See gradients that are about to be reduced."""
        self._values += sum(part.values.numel() for part in parts)
        if self._measures and self._ended % self._every == 0:
            self._errors.update(
                {part.name or str(part.tensor): self._error(part) for part in parts}
            )

    def step_ended(self) -> None:
        """Write, if it is time to: all the work of earlier steps is done."""
        if self._steps and self._ended % self._every == 0:
            for tag, value in (self._means() | self._nmse()).items():
                self._writer.add_scalar(f"gradwire/{tag}", value, self._ended)
            self._written = self._stats()
            self._forget()

    def _forget(self) -> None:
        self._steps = self._values = 0
        self._errors: dict[str, tuple[float, float]] = {}

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
        if not self._errors:
            return {}
        lost, energy = (sum(column) for column in zip(*self._errors.values(), strict=True))
        found = {"nmse": lost / energy if energy else 0.0}
        if self._layers:
            for name, (lost, energy) in self._errors.items():
                found[f"nmse/{name}"] = lost / energy if energy else 0.0
        return found

    def _error(self, part: Part) -> tuple[float, float]:
        """The squared norms of what encoding loses of a gradient, and of the gradient."""
        source, codec = part.values.float(), self._codec(part)
        if part.tensor in self._reducer.residuals:
            source = source + self._reducer.residuals[part.tensor]
        if codec is None:
            return 0.0, _energy(source)
        key = Key(seed=self._reducer.seed, step=self._reducer.step, tensor=part.tensor)
        return _energy(source - simulate(codec, [source], key)), _energy(source)

    def _codec(self, part: Part) -> Codec | None:
        """What encodes this part now; None: it travels raw."""
        route = self._reducer.route_for(part.tensor, part.values)
        if route is None or self._reducer.step < self._reducer.warmup_steps:
            return None
        return route.codec if route.learner is None else route.learner.codec_for(part)


def _energy(values: Tensor) -> float:
    return float(values.double().square().sum())
