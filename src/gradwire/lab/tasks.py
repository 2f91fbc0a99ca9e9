"""What the lab can train. A new task is one `Task` in `TASKS`; nothing else knows their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from gradwire.lab.data import Dataset
from gradwire.lab.gpt import bits_per_character, next_character_loss, small_gpt
from gradwire.lab.mnist import Logistic, correct, lenet, load_mnist, perceptron
from gradwire.lab.optimizers import Optimize, adamw, sgd
from gradwire.lab.text import load_text


@dataclass(frozen=True)
class Score:
    """How good a model is on the test set: the mean of a number per example."""

    name: str
    per_example: Callable[[Tensor, Tensor], Tensor]
    higher_is_better: bool

    def reaches(self, score: float, target: float) -> bool:
        """Is `score` as good as `target`? One that is not a number never is."""
        return score >= target if self.higher_is_better else score <= target


@dataclass(frozen=True)
class Task:
    """A model, its data, its loss and how it is optimized, with settings that train it quickly."""

    name: str
    summary: str
    model: Callable[[], nn.Module]
    data: Callable[[Path | None], Dataset]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Score
    optimize: Optimize
    steps: int
    batch: int
    lr: float


ACCURACY = Score("accuracy", correct, higher_is_better=True)
BITS_PER_CHARACTER = Score("bits_per_character", bits_per_character, higher_is_better=False)

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
            sgd,
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
            sgd,
            steps=500,
            batch=32,
            lr=0.05,
        ),
        Task(
            "mnist-logistic",
            "logistic regression on MNIST, which is convex",
            Logistic,
            load_mnist,
            F.cross_entropy,
            ACCURACY,
            sgd,
            steps=500,
            batch=32,
            lr=4.0,
        ),
        Task(
            "gpt-char",
            "a small GPT on the text of Python's help topics",
            small_gpt,
            load_text,
            next_character_loss,
            BITS_PER_CHARACTER,
            adamw,
            steps=500,
            batch=4,
            lr=0.001,
        ),
    )
}
