"""What a codec does to each layer: bits per value, and what the first worker's messages lose."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch.distributed as dist

from gradwire.lab.algorithms.base import Replica
from gradwire.lab.records import Layer
from gradwire.reduction.plan import Row

SAMPLES = 5  # steps of a run in which errors are measured: each is decoded once more
TAG = "gradwire/nmse/"


class Errors:
    """Listens to a replica, as TensorBoard would."""

    def __init__(self, replica: Replica, steps: int) -> None:
        self._found: defaultdict[str, list[float]] = defaultdict(list)
        if dist.get_rank() == 0:
            replica.log_to(self, every=max(1, steps // SAMPLES))

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Take note of an error."""
        if tag.startswith(TAG):
            self._found[tag.removeprefix(TAG)].append(scalar_value)

    def layers(self, plan: Iterable[Row]) -> tuple[Layer, ...]:
        """Every parameter of the plan; call it when the replica is closed."""
        return tuple(
            Layer(row.parameter, row.values, row.bits, row.is_exact, self._mean(row.parameter))
            for row in plan
        )

    def _mean(self, parameter: str) -> float | None:
        errors = self._found[parameter]
        mean = sum(errors) / len(errors) if errors else math.nan
        return mean if math.isfinite(mean) else None
