"""The scale of the loss, which residuals are in, and the steps that a scaler throws away.

A `GradScaler` that finds one inf skips the step for all parameters, and its scale falls. What those
with finite gradients have delivered in that step is lost, and yet their residuals have moved on,
and so has what a codec has learned. Both go back to where they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from gradwire.adaptive import State
from gradwire.reduction.adaptation import Learner


class Owing(Protocol):
    """Who has residuals: a `Reducer` or a `Scatterer`."""

    @property
    def residuals(self) -> Mapping[Any, Tensor]:
        """By parameter or by buffer."""


class LossScale:
    """Follows `scaler`, with a copy of all residuals. Without one the scale is 1, and no copy."""

    def __init__(
        self, scaler: GradScaler | None, owing: Sequence[Owing], learners: Sequence[Learner] = ()
    ) -> None:
        self.value = 1.0
        self._scaler = scaler
        self._owing = owing
        self._learners = learners
        self._reading: tuple[float, int] | None = None
        self._residuals: list[dict[Any, Tensor]] = [{} for _ in owing]
        self._states: list[dict[int, State]] = [{} for _ in learners]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the copy takes."""
        return sum(copy.nbytes for copies in self._residuals for copy in copies.values())

    def follow(self) -> None:
        """Call it before residuals are used. If the scaler was updated since, a new step begins."""
        reading = self._read()
        if reading == self._reading:
            return
        scale, _ = reading
        if self._scaler is not None and scale < self.value:
            self._undo()
        if scale != self.value:
            for owing in self._owing:
                for residual in owing.residuals.values():
                    residual.mul_(scale / self.value)
        self.start_from(scale)
        self._reading = reading

    def start_from(self, scale: float) -> None:
        """Residuals are in this scale, and no step is to be undone but those from here on."""
        self.value, self._reading = scale, None
        if self._scaler is not None:
            self._copy()

    def _read(self) -> tuple[float, int]:
        """The scale, and how many steps it has lasted: an update changes one of them."""
        if self._scaler is None:
            return 1.0, 0
        return self._scaler.get_scale(), self._scaler.state_dict().get("_growth_tracker", 0)

    def _copy(self) -> None:
        for owing, copies in zip(self._owing, self._residuals, strict=True):
            for name, residual in owing.residuals.items():
                if name in copies:
                    copies[name].copy_(residual)
                else:
                    copies[name] = residual.clone()
        self._states = [dict(learner.states) for learner in self._learners]

    def _undo(self) -> None:
        """Take the copy back. A residual that there was none of then was zero."""
        for owing, copies in zip(self._owing, self._residuals, strict=True):
            for name, residual in owing.residuals.items():
                if name in copies:
                    residual.copy_(copies[name])
                else:
                    residual.zero_()
        for learner, states in zip(self._learners, self._states, strict=True):
            learner.states = dict(states)
