"""What `attach` returns, whatever it was attached to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from gradwire.adapters.tensorboard import Log, Writer
from gradwire.codec import Codec
from gradwire.planner.auto.settings import Auto
from gradwire.reduction.checkpoint import Checkpoint, Progress
from gradwire.reduction.loss_scale import LossScale
from gradwire.reduction.plan import Plan
from gradwire.reduction.residuals import Residuals
from gradwire.reduction.stats import Stats


class Handle(ABC):
    """What `attach` returns: the plan, statistics, and state for checkpoints; `close` ends it."""

    def __init__(self, residuals: Residuals, scale: LossScale) -> None:
        self._residuals = residuals
        self._scale = scale
        self._log: Log | None = None

    @property
    @abstractmethod
    def codec(self) -> Codec | Auto:
        """What was attached."""

    @abstractmethod
    def plan(self) -> Plan:
        """What becomes of each parameter, or of each FSDP module; print it."""

    @abstractmethod
    def stats(self) -> Stats:
        """Totals since `attach`; nothing of them is in the state."""

    def log_to(
        self, writer: Writer, *, every: int = 10, nmse: bool = False, layers: bool = False
    ) -> None:
        """Write bytes, their ratio to float32, and times to `writer`, every so many steps.

        nmse: also what this worker's messages lose of its gradients, over the energy of those;
            costs one more decoding in these steps.
        layers: that for each parameter, or FSDP module, too. One rank is enough: nothing is
            exchanged for it.
        """
        self._log = Log(writer, self.stats, every=every, nmse=nmse, layers=layers)
        self._log.start_from(self._progress().step)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: every rank must save its own. It suits `dcp.save`."""
        self._scale.follow()()  # the last step may have been skipped
        return self._checkpoint().save(self._progress())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, on the same rank of as many workers.

        If there were more or fewer workers, residuals and failure rates start anew. A state that
        does not fit is refused, and nothing has changed then.
        """
        progress = self._checkpoint().load(state_dict, list(self._progress().modules))
        self._scale.start_from(progress.scale)
        self._resume(progress)
        if self._log is not None:
            self._log.start_from(progress.step)

    @abstractmethod
    def close(self) -> None:
        """Let go of threads and memory, on every rank; `stats` and state stay."""

    @abstractmethod
    def _checkpoint(self) -> Checkpoint:
        """What is to be saved."""

    @abstractmethod
    def _progress(self) -> Progress:
        """Where it stands."""

    @abstractmethod
    def _resume(self, progress: Progress) -> None:
        """Go on from there."""
