"""What the parts of the lab tell each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradwire.lab.links.shape import Shape

SYNC = "sync"  # the algorithm that the others are compared with


@dataclass(frozen=True)
class Settings:
    """One invocation of the lab: everything a worker needs to know."""

    task: str
    codecs: tuple[str, ...]
    workers: int
    steps: int
    batch: int
    lr: float
    seed: int
    threads: int
    data: Path | None
    link: Shape | None
    target: float | None
    eval_every: int
    algorithms: tuple[str, ...] = (SYNC,)
    slow: float = 1.0
    """How many times slower than the others the last worker computes."""

    @property
    def trainings(self) -> list[Training]:
        """What is run, one after the other."""
        return [Training(codec, each) for each in self.algorithms for codec in self.codecs]


@dataclass(frozen=True)
class Training:
    """A codec, and the algorithm that uses it."""

    codec: str
    algorithm: str = SYNC

    @property
    def label(self) -> str:
        """What to call it. Synchronous training is what is meant if nothing is said.

        >>> Training("none").label, Training("none", "local:every=10").label
        ('none', 'local:every=10 none')
        """
        return self.codec if self.algorithm == SYNC else f"{self.algorithm} {self.codec}"


@dataclass(frozen=True)
class Progress:
    """`step` steps of the training at place `index` are done; `loss` is that of the last one."""

    index: int
    step: int
    loss: float


@dataclass(frozen=True)
class Remark:
    """What gradwire has to say about the run, in one line."""

    text: str


@dataclass(frozen=True)
class Point:
    """One point of the loss curve: the mean training loss of the steps since the last point."""

    step: int
    loss: float
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """The score on held-out data after `step` steps; bytes and seconds are those of training."""

    step: int
    score: float
    loss: float
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Layer:
    """One parameter: the bits that a value of it takes, None if nothing is known of them.

    If they are not exact, that is the most they can be.

    `nmse` is what the first worker's messages lost of its gradient, over the energy of that: the
    mean of a few steps.
    """

    parameter: str
    values: int
    bits: float | None
    is_exact: bool
    nmse: float | None


@dataclass(frozen=True)
class Result:
    """What one codec did in one algorithm. Bytes and seconds are those of the average worker.

    The `_s` are seconds per step, and their parts overlap: a bucket is encoded and sent while
    the backward pass is still computing the next. `scores` are those of held-out data on the way,
    and `reached` the first of them that is as good as the target. `remarks` are what is to be known
    beside the numbers, such as that the codec was still learning.
    """

    codec: str
    task: str
    score: float
    score_name: str
    higher_is_better: bool
    loss: float
    bytes_per_step: float
    bits_per_value: float
    ratio: float | None
    step_s: float
    compute_s: float
    encode_s: float
    comm_s: float
    decode_s: float
    steps: int
    workers: int
    seed: int
    parameters: int
    link: str | None
    target: float | None
    reached: Evaluation | None
    scores: tuple[Evaluation, ...]
    curve: tuple[Point, ...]
    layers: tuple[Layer, ...] = ()
    remarks: tuple[str, ...] = ()
    algorithm: str = SYNC
    slow: float = 1.0

    @property
    def label(self) -> str:
        """What to call it among others."""
        return Training(self.codec, self.algorithm).label

    def to_json(self) -> dict[str, Any]:
        """Everything under its own name, but the score under what it measures.

        JSON knows no infinity, so the loss and the score of a run that diverged are null.
        """
        fields = asdict(self)
        for place in (fields, *fields["scores"], *fields["curve"]):
            for name in {"score", "loss"} & set(place):
                place[name] = _finite(place[name])
        return {
            "codec": fields.pop("codec"),
            "algorithm": fields.pop("algorithm"),
            "task": fields.pop("task"),
            fields.pop("score_name"): fields.pop("score"),
            **fields,
        }


Event = Progress | Remark | Result
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""


def float32_bytes(parameters: int, workers: int) -> float:
    """What a worker sends for one ring all-reduce of float32 gradients.

    >>> float32_bytes(parameters=1000, workers=4)
    6000.0
    """
    return 2 * (workers - 1) / workers * 4 * parameters


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
