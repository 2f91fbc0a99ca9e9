"""Scalars of a handle over time, for TensorBoard or anything else with an `add_scalar`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from gradwire.collectives.parts import Part
from gradwire.reduction.stats import Stats

_STAGES = ("encode_s", "comm_s", "decode_s")


class Writer(Protocol):
    """What is asked of a writer; `torch.utils.tensorboard.SummaryWriter` is one."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Record one number."""


class Log:
    """Writes means over `every` steps: bytes, their ratio to float32, and seconds by stage.

    With `nmse` also the error of the gradient in the last of these steps, over its energy: that
    less what this worker's own messages, as they were sent, say of it. With `layers`, by parameter
    or module too. Nothing is exchanged for it, so one rank may log alone.
    """

    def __init__(
        self, writer: Writer, stats: Callable[[], Stats], *, every: int, nmse: bool, layers: bool
    ) -> None:
        if every < 1:
            raise ValueError(f"`every` must be at least 1 step, got {every}.")
        self._writer = writer
        self._stats = stats
        self._every = every
        self._measures = nmse or layers
        self._layers = layers
        self.start_from(0)

    def start_from(self, step: int) -> None:
        """Forget what was seen; `step` steps are done."""
        self._step = step
        self._written = self._stats()
        self._steps = 0
        self._float32_nbytes = 0.0
        self._watches: dict[str, list[Watch]] = {}

    def begins(self, step: int) -> None:
        """Step number `step`, from 1, begins; the first to say so ends the last one."""
        if step > self._step:
            self.ended()
            self._step = step
            self._steps += 1

    def sends(self, numel: int, trips: float) -> None:
        """Count `numel` values: what each would take as float32 is sent `trips` times."""
        self._float32_nbytes += 4 * numel * trips

    def watched(self, label: str, part: Part) -> Part:
        """See what is about to be reduced; it may come back with somebody to watch."""
        if not self._measures or self._step % self._every:
            return part
        watch = Watch(part)
        self._watches.setdefault(label, []).append(watch)
        return replace(part, watch=watch)

    def ended(self) -> None:
        """Write, if it is time to: all the work of the last step is done."""
        if self._steps and self._step % self._every == 0:
            for tag, value in (self._means() | self._nmse()).items():
                self._writer.add_scalar(f"gradwire/{tag}", value, self._step)
            self.start_from(self._step)

    def _means(self) -> dict[str, float]:
        now, before = self._stats(), self._written
        sent = now.bytes_sent - before.bytes_sent
        return {
            "bytes_per_step": sent / self._steps,
            "of_float32": sent / max(self._float32_nbytes, 1),
            **{s: (getattr(now, s) - getattr(before, s)) / self._steps for s in _STAGES},
        }

    def _nmse(self) -> dict[str, float]:
        if not self._watches:
            return {}
        errors = {label: _sum([w.error() for w in each]) for label, each in self._watches.items()}
        found = {"nmse": _ratio(_sum(list(errors.values())))}
        by_layer = errors if self._layers else {}
        return found | {f"nmse/{label}": _ratio(error) for label, error in by_layer.items()}


class Watch:
    """Is told by the lanes what is lost of the slices of a part. What travels raw loses nothing."""

    def __init__(self, part: Part) -> None:
        self._raw = energy(part.values)
        self._slices: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, start: int, source: Tensor, lost: Tensor) -> None:
        """Take note of a slice."""
        self._slices[start] = energy(lost), energy(source)

    def error(self) -> tuple[float, float]:
        """The squared norms of what was lost of the gradient, and of the gradient."""
        if not self._slices:
            return 0.0, float(self._raw)
        slices = [self._slices[start] for start in sorted(self._slices)]
        return _sum([(float(lost), float(whole)) for lost, whole in slices])


def energy(values: Tensor) -> Tensor:
    """The squared norm, to be shown and not to be sent; a GPU is asked for it when it is shown."""
    return values.double().square().sum()


def _sum(errors: Sequence[tuple[float, float]]) -> tuple[float, float]:
    lost, whole = zip(*errors, strict=True)
    return sum(lost), sum(whole)


def _ratio(error: tuple[float, float]) -> float:
    lost, whole = error
    return lost / whole if whole else 0.0
