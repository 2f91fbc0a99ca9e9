"""Scalars of an attachment to FSDP2 over time, as `adapters/tensorboard.py` writes those of DDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from gradwire.adapters.fsdp.scatterer import Scatterer
from gradwire.adapters.fsdp.units import Unit
from gradwire.adapters.tensorboard import Watch, Writer
from gradwire.collectives.parts import Part
from gradwire.key import Key
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.stats import Stats
from gradwire.transport.link import Link, ring_nbytes

_STAGES = ("encode_s", "comm_s", "decode_s")


class Log:
    """Writes means over `every` steps: bytes, their ratio to float32, and seconds by stage.

    With `nmse` also what this worker's own messages have lost of its gradients in the last of these
    steps, over the energy of the gradients. With `layers`, by module too. Nothing is exchanged for
    it, so one rank may log alone.
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
        self._steps = self._float32_nbytes = 0
        self._errors: dict[str, tuple[float, float]] = {}
        self._watches: dict[str, Watch] = {}

    def begins(self, step: int) -> None:
        """A module begins its step number `step`, from 1. The first to do so ends the last one."""
        if step > self._step:
            self.ended()
            self._step = step
            self._steps += 1

    def scatters(
        self, unit: Unit, scatterer: Scatterer, link: Link, key: Key, buffer: Tensor, *, ends: bool
    ) -> None:
        """See what is about to be reduced; the error counts if it `ends` here, without replicas."""
        self._float32_nbytes += ring_nbytes(4 * buffer.numel(), link.size) // 2
        if self._is_time and ends:
            self._errors[unit.label] = scatterer.error(link, unit, buffer, key)

    def exchanges(self, unit: Unit, reducer: Reducer, part: Part) -> Part:
        """See what is about to go between replicas; it may come back with somebody to watch."""
        self._float32_nbytes += ring_nbytes(4 * part.values.numel(), reducer.link.size)
        if not self._is_time:
            return part
        self._watches[unit.label] = watch = Watch(part)
        return replace(part, watch=watch)

    def ended(self) -> None:
        """Write, if it is time to: all the work of the last step is done."""
        if self._steps and self._step % self._every == 0:
            for tag, value in (self._means() | self._nmse()).items():
                self._writer.add_scalar(f"gradwire/{tag}", value, self._step)
            self.start_from(self._step)

    @property
    def _is_time(self) -> bool:
        return self._measures and self._step % self._every == 0

    def _means(self) -> dict[str, float]:
        now, before = self._stats(), self._written
        sent = now.bytes_sent - before.bytes_sent
        return {
            "bytes_per_step": sent / self._steps,
            "of_float32": sent / max(self._float32_nbytes, 1),
            **{s: (getattr(now, s) - getattr(before, s)) / self._steps for s in _STAGES},
        }

    def _nmse(self) -> dict[str, float]:
        errors = self._errors | {name: watch.error() for name, watch in self._watches.items()}
        if not errors:
            return {}
        by_name = errors if self._layers else {}
        lost, whole = (sum(column) for column in zip(*errors.values(), strict=True))
        return {"nmse": _ratio(lost, whole)} | {
            f"nmse/{name}": _ratio(*error) for name, error in by_name.items()
        }


def _ratio(lost: float, whole: float) -> float:
    return lost / whole if whole else 0.0
