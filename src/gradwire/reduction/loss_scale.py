"""The scale of the loss, which residuals are in, and the steps that a scaler throws away.

A `GradScaler` that finds one inf skips the step for all parameters, and its scale falls. What those
with finite gradients have delivered in that step is lost, and yet their residuals have moved on,
and so has what a codec has learned. Both go back to where they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from gradwire.reduction.adaptation import Adaptation
from gradwire.reduction.residuals import Residuals
from gradwire.transport.device import HOST, Taken, nothing


class LossScale:
    """Follows `scaler`, with a copy of all residuals. Without one the scale is 1, and no copy."""

    def __init__(
        self,
        scaler: GradScaler | None,
        residuals: Residuals,
        adaptations: Sequence[Adaptation] = (),
    ) -> None:
        self._value = 1.0
        self._scaler = scaler
        self._residuals = residuals
        self._adaptations = adaptations
        self._reading: tuple[float, int] | None = None

    @property
    def value(self) -> float:
        """The scale that residuals are in."""
        return self._value

    def follow(self) -> Callable[[], None]:
        """Call it before residuals are used. If the scaler was updated since, a new step begins.

        Whoever uses them calls what comes back first, in the thread of a job.
        """
        reading = self._read()
        if reading != self._reading:
            self._move_to(reading[0])
            self._reading = reading
        return nothing

    def start_from(self, scale: float) -> None:
        """Residuals are in this scale, and no step is to be undone but those from here on."""
        self._value, self._reading = scale, None
        self._remember()

    def _move_to(self, scale: float) -> None:
        """Follow the scaler to `scale`; where it has fallen, a step was thrown away."""
        if self._scaler is not None and scale < self._value:
            self._residuals.undo()
            for adaptation in self._adaptations:
                adaptation.undo()
        if scale != self._value:
            self._residuals.scale(scale / self._value)
        self._value = scale
        self._remember()

    def _remember(self) -> None:
        if self._scaler is not None:
            self._residuals.remember()
            for adaptation in self._adaptations:
                adaptation.remember()

    def _read(self) -> tuple[float, int]:
        """The scale, and how many steps it has lasted: an update changes one of them."""
        if self._scaler is None:
            return 1.0, 0
        return self._scaler.get_scale(), self._scaler.state_dict().get("_growth_tracker", 0)


class _ScaleThere(LossScale):
    """Of a scaler on a GPU, which the thread of the backward pass does not ask for its scale.

    Whether it was updated is known without asking: tensors count their changes.
    """

    def __init__(
        self,
        scaler: GradScaler,
        residuals: Residuals,
        adaptations: Sequence[Adaptation] = (),
    ) -> None:
        super().__init__(scaler, residuals, adaptations)
        self._device = residuals.device
        self._version: tuple[int, int] | None = None

    def _updated(self) -> Tensor | None:
        """The scale, if it was updated since the last call."""
        scaler: Any = self._scaler
        scale: Tensor | None = scaler._scale
        version = None if scale is None else (id(scale), scale._version)
        is_known, self._version = version == self._version, version
        return None if is_known else scale


class ScaleOnGPU(_ScaleThere):
    """For residuals on the same GPU: the host never learns what the scale is."""

    def __init__(
        self,
        scaler: GradScaler,
        residuals: Residuals,
        adaptations: Sequence[Adaptation] = (),
    ) -> None:
        super().__init__(scaler, residuals, adaptations)
        with self._device.entered():
            self._now = torch.ones(1, device=self._device.memory)

    @property
    def value(self) -> float:
        with self._device.entered():
            return float(self._now)

    def follow(self) -> Callable[[], None]:
        scale = self._updated()
        if scale is not None:
            taken = self._device.take(scale)
            with self._device.entered():
                taken.ready()
                self._undo_if(taken.values < self._now)
                self._residuals.scale(taken.values / self._now)
                self._remember()
                self._now.copy_(taken.values)
        return nothing

    def start_from(self, scale: float) -> None:
        with self._device.entered():
            self._now.fill_(scale)
            self._remember()
        self._version = None

    def _undo_if(self, undone: Tensor) -> None:
        self._residuals.undo_if(undone)
        for adaptation in self._adaptations:
            adaptation.undo_if(undone)


class ScaleFromGPU(_ScaleThere):
    """For residuals on the CPU: the scale is copied there, and the first job waits for it."""

    def __init__(
        self, scaler: GradScaler, residuals: Residuals, adaptations: Sequence[Adaptation]
    ) -> None:
        super().__init__(scaler, residuals, adaptations)
        self._lock = threading.Lock()
        self._coming: Taken | None = None

    def follow(self) -> Callable[[], None]:
        scale = self._updated()
        if scale is not None:
            self._coming = self._device.take(scale)
        return self._arrive

    def start_from(self, scale: float) -> None:
        self._version, self._coming = None, None
        super().start_from(scale)

    def _arrive(self) -> None:
        with self._lock:
            taken, self._coming = self._coming, None
            if taken is not None:
                taken.ready()
                self._move_to(float(taken.values))


def loss_scale(
    scaler: GradScaler | None, residuals: Residuals, adaptations: Sequence[Adaptation] = ()
) -> LossScale:
    """What follows `scaler` for `residuals`, wherever both are."""
    if scaler is None or residuals.device is HOST:
        return LossScale(scaler, residuals, adaptations)
    if scaler._device == "cpu":
        raise ValueError(
            "`scaler` is one for the CPU, and the module is on a GPU; use `GradScaler('cuda')`."
        )
    if residuals.device.memory.type == "cpu":
        return ScaleFromGPU(scaler, residuals, adaptations)
    return ScaleOnGPU(scaler, residuals, adaptations)
