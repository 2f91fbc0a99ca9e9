"""What the lab can train. A new task is one `Task` in `TASKS`; nothing else knows their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from gradwire.lab.data import Dataset, load_mnist


@dataclass(frozen=True)
class Score:
    """How good a model is on the test set: the mean of a number per example."""

    name: str
    per_example: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """A model, its data and its loss, with settings that train it in well under a minute."""

    name: str
    summary: str
    model: Callable[[], nn.Module]
    data: Callable[[Path | None], Dataset]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Score
    steps: int
    batch: int
    lr: float


class Normalize(nn.Module):
    """Bytes to floats of mean 0 and deviation 1, so that data stays small until it is used."""

    def forward(self, images: Tensor) -> Tensor:
        """Scale with MNIST's own mean and deviation."""
        return (images.float() / 255 - 0.1307) / 0.3081


def lenet() -> nn.Module:
    """Build a LeNet-like network whose parameters are nearly all in tensors large enough to encode.

    >>> sum(p.numel() for p in lenet().parameters())
    1630154
    """
    return nn.Sequential(
        Normalize(),
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def perceptron() -> nn.Module:
    """Build 784-300-100-10, the network of the NDQSG paper (arXiv:1904.01197)."""
    return nn.Sequential(
        Normalize(),
        nn.Flatten(),
        nn.Linear(784, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).double()


ACCURACY = Score("accuracy", _correct)

TASKS = {
    task.name: task
    for task in (
        Task(
            "mnist-cnn",
            "a LeNet-like CNN on MNIST",
            lenet,
            load_mnist,
            F.cross_entropy,
            ACCURACY,
            steps=200,
            batch=32,
            lr=0.05,
        ),
        Task(
            "mnist-fc",
            "784-300-100-10 on MNIST",
            perceptron,
            load_mnist,
            F.cross_entropy,
            ACCURACY,
            steps=500,
            batch=32,
            lr=0.05,
        ),
    )
}
