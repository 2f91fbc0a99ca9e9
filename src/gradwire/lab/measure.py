"""What a run is measured by: a row per step, averaged over the workers."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.lab.data import Split
from gradwire.lab.records import Evaluation, Point
from gradwire.lab.tasks import Task

UNTIMED_STEPS = 5  # the first ones pay for allocations that the others do not
CURVE_POINTS = 100
EVALUATION_BATCH = 64


class Row(NamedTuple):
    """One step: its own loss, and running totals of all else."""

    loss: float
    bytes: float
    seconds: float
    encode_s: float
    comm_s: float
    decode_s: float


class Log:
    """The rows of a run, their numbers the mean over all workers."""

    def __init__(self, rows: list[Row]) -> None:
        table = torch.tensor([Row(0, 0, 0, 0, 0, 0), *rows], dtype=torch.float64)
        table = mean_over_workers(table)
        self._columns = dict(zip(Row._fields, table.unbind(1), strict=True))
        self.steps = len(rows)

    def total(self, column: str) -> float:
        """What the whole run came to."""
        return float(self._columns[column][-1])

    def typical(self, column: str) -> float:
        """The mean per step once the run has settled."""
        skipped = min(UNTIMED_STEPS, self.steps // 2)
        return float(self.total(column) - self._columns[column][skipped]) / (self.steps - skipped)

    def evaluation(self, step: int, score: float, loss: float) -> Evaluation:
        """A score, with what it took to get there."""
        nbytes, seconds = (float(self._columns[name][step]) for name in ("bytes", "seconds"))
        return Evaluation(step, score, loss, whole(nbytes), seconds)

    def curve(self) -> tuple[Point, ...]:
        """At most `CURVE_POINTS` points, evenly spaced, the last of them the last step."""
        num_points = min(CURVE_POINTS, self.steps)
        ends = [self.steps * (i + 1) // num_points for i in range(num_points)]
        return tuple(
            Point(
                step=end,
                loss=float(self._columns["loss"][start + 1 : end + 1].mean()),
                bytes=whole(float(self._columns["bytes"][end])),
                seconds=float(self._columns["seconds"][end]),
            )
            for start, end in zip([0, *ends], ends, strict=False)
        )


def mean_over_workers(values: Tensor) -> Tensor:
    """Average `values` in place; the same on every worker."""
    dist.all_reduce(values)
    return values.div_(dist.get_world_size())


def whole(value: float) -> float:
    """Return `value`, as an integer if it is one: bytes look wrong with a decimal point.

    >>> whole(12.0), whole(12.5)
    (12, 12.5)
    """
    return int(value) if value.is_integer() else value


@torch.no_grad()
def evaluate(model: nn.Module, task: Task, test: Split) -> tuple[float, float]:
    """Return the score and the loss on the test set, of which every worker does its share."""
    sums = _sums(model, task, test, dist.get_rank(), dist.get_world_size())
    dist.all_reduce(sums)
    score, loss = (sums / len(test)).tolist()
    return score, loss


@torch.no_grad()
def evaluate_alone(model: nn.Module, task: Task, test: Split) -> tuple[float, float]:
    """The same in a process that has no others to share the work with."""
    score, loss = (_sums(model, task, test, 0, 1) / len(test)).tolist()
    return score, loss


def _sums(model: nn.Module, task: Task, test: Split, rank: int, num_workers: int) -> Tensor:
    """Scores and losses of this worker's share of the test set, added up."""
    sums = torch.zeros(2, dtype=torch.float64)
    for chosen in torch.split(torch.arange(rank, len(test), num_workers), EVALUATION_BATCH):
        outputs, targets = model(test.inputs[chosen]), test.targets[chosen]
        sums[0] += task.score.per_example(outputs, targets).sum()
        sums[1] += task.loss(outputs, targets).double() * len(targets)
    return sums
