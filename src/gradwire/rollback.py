"""Where a reducer stood before a step, for the case that the step is thrown away.

A `GradScaler` that finds one inf skips the step for all parameters. What those with finite
gradients have delivered in it is lost, and yet their residuals have moved on, and so has what a
codec has learned. Both go back.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.codec import Codec
from gradwire.learning import State
from gradwire.reducer import Reducer


class Rollback:
    """A copy of the residuals. States of learning codecs never change, so those cost nothing."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._residuals: dict[int, Tensor] = {}
        self._states: dict[Codec, dict[int, State]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the copy takes."""
        return sum(residual.nbytes for residual in self._residuals.values())

    def mark(self) -> None:
        """Remember where the reducer stands now."""
        for tensor, residual in self._reducer.residuals.items():
            if tensor in self._residuals:
                self._residuals[tensor].copy_(residual)
            else:
                self._residuals[tensor] = residual.clone()
        self._states = {
            codec: dict(route.learner.states)
            for codec, route in self._reducer.routes.items()
            if route.learner is not None
        }

    def undo(self) -> None:
        """Go back to the mark. A residual that there was none of then was zero."""
        for tensor, residual in self._reducer.residuals.items():
            if tensor in self._residuals:
                residual.copy_(self._residuals[tensor])
            else:
                residual.zero_()
        for codec, states in self._states.items():
            learner = self._reducer.routes[codec].learner
            assert learner is not None
            learner.states = dict(states)
