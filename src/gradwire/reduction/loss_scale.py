"""The scale of the loss, which residuals are in, and the steps that a scaler throws away.

A `GradScaler` that finds one inf skips the step for all parameters, and its scale falls. What those
with finite gradients have delivered in that step is lost, and yet their residuals have moved on,
and so has what a codec has learned. Both go back to where they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from gradwire.reduction.adaptation import Adaptation
from gradwire.reduction.residuals import Residuals


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

    def follow(self) -> None:
        """Call it before residuals are used. If the scaler was updated since, a new step begins."""
        reading = self._read()
        if reading == self._reading:
            return
        scale, _ = reading
        if self._scaler is not None and scale < self._value:
            self._residuals.undo()
            for adaptation in self._adaptations:
                adaptation.undo()
        if scale != self._value:
            self._residuals.scale(scale / self._value)
        self.start_from(scale)
        self._reading = reading

    def start_from(self, scale: float) -> None:
        """Residuals are in this scale, and no step is to be undone but those from here on."""
        self._value, self._reading = scale, None
        if self._scaler is not None:
            self._residuals.remember()
            for adaptation in self._adaptations:
                adaptation.remember()

    def _read(self) -> tuple[float, int]:
        """The scale, and how many steps it has lasted: an update changes one of them."""
        if self._scaler is None:
            return 1.0, 0
        return self._scaler.get_scale(), self._scaler.state_dict().get("_growth_tracker", 0)


class ScaleOnGPU(LossScale):
    """The same for residuals on a GPU, next to the scale: the host never learns what that is.

    Whether the scaler was updated is known without asking the GPU: tensors count their changes.
    """

    def __init__(self, scaler: GradScaler, residuals: Residuals) -> None:
        super().__init__(scaler, residuals)
        self._device = residuals.device
        self._version: tuple[int, int] | None = None
        with self._device.entered():
            self._now = torch.ones(1, device=self._device.memory)

    @property
    def value(self) -> float:
        with self._device.entered():
            return float(self._now)

    def follow(self) -> None:
        scaler: Any = self._scaler
        scale: Tensor | None = scaler._scale
        if scale is None or self._version == (version := (id(scale), scale._version)):
            return
        taken = self._device.take(scale)
        with self._device.entered():
            taken.ready()
            self._residuals.undo_if(taken.values < self._now)
            self._residuals.scale(taken.values / self._now)
            self._residuals.remember()
            self._now.copy_(taken.values)
        self._version = version

    def start_from(self, scale: float) -> None:
        with self._device.entered():
            self._now.fill_(scale)
            self._residuals.remember()
        self._version = None


def loss_scale(
    scaler: GradScaler | None, residuals: Residuals, adaptations: Sequence[Adaptation] = ()
) -> LossScale:
    """What follows `scaler` for `residuals`, wherever these are."""
    if scaler is None or residuals.device.memory.type == "cpu":
        return LossScale(scaler, residuals, adaptations)
    return ScaleOnGPU(scaler, residuals)
