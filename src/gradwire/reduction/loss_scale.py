"""The scale of the loss, which residuals are in, and the steps that a scaler throws away.

A `GradScaler` that finds one inf skips the step for all parameters, and its scale falls. What those
with finite gradients have delivered in that step is lost, and yet their residuals have moved on,
and so has what a codec has learned. Both go back to where they were.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        self.value = 1.0
        self._scaler = scaler
        self._residuals = residuals
        self._adaptations = adaptations
        self._reading: tuple[float, int] | None = None

    def follow(self) -> None:
        """Call it before residuals are used. If the scaler was updated since, a new step begins."""
        reading = self._read()
        if reading == self._reading:
            return
        scale, _ = reading
        if self._scaler is not None and scale < self.value:
            self._residuals.undo()
            for adaptation in self._adaptations:
                adaptation.undo()
        if scale != self.value:
            self._residuals.scale(scale / self.value)
        self.start_from(scale)
        self._reading = reading

    def start_from(self, scale: float) -> None:
        """Residuals are in this scale, and no step is to be undone but those from here on."""
        self.value, self._reading = scale, None
        if self._scaler is not None:
            self._residuals.remember()
            for adaptation in self._adaptations:
                adaptation.remember()

    def _read(self) -> tuple[float, int]:
        """The scale, and how many steps it has lasted: an update changes one of them."""
        if self._scaler is None:
            return 1.0, 0
        return self._scaler.get_scale(), self._scaler.state_dict().get("_growth_tracker", 0)
