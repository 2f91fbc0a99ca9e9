"""How tasks are optimized: an optimizer, and what its learning rate does over the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler

WARM_UP = 0.1  # the share of the steps in which Adam's second moments may settle

Optimize = Callable[[Iterable[nn.Parameter], float, int], tuple[Optimizer, LRScheduler]]


def sgd(parameters: Iterable[nn.Parameter], lr: float, steps: int) -> tuple[Optimizer, LRScheduler]:
    """Momentum, and a learning rate that falls in a line to a hundredth."""
    optimizer = SGD(parameters, lr=lr, momentum=0.9)
    return optimizer, LinearLR(optimizer, start_factor=1.0, end_factor=0.01, total_iters=steps)


def adamw(
    parameters: Iterable[nn.Parameter], lr: float, steps: int
) -> tuple[Optimizer, LRScheduler]:
    """AdamW as it is used for transformers, with warm-up and then half a cosine.

    The second moments are averaged over some 100 steps, not Adam's usual 1000: runs are short.
    """
    optimizer = AdamW(parameters, lr=lr, betas=(0.9, 0.99))
    return optimizer, LambdaLR(optimizer, lambda step: warm_up_and_cosine(step, steps))


def warm_up_and_cosine(step: int, steps: int) -> float:
    """Return the learning rate of a step, as a share of the largest.

    >>> [round(warm_up_and_cosine(step, 40), 2) for step in (0, 1, 3, 4, 22, 40, 99)]
    [0.25, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0]
    """
    warm_up = math.ceil(WARM_UP * steps)
    if step < warm_up:
        return (step + 1) / warm_up
    progress = min((step - warm_up) / max(steps - warm_up, 1), 1.0)
    return (1 + math.cos(math.pi * progress)) / 2
