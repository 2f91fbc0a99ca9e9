"""What becomes of the settings of an optimizer when there are n times as many steps."""

from __future__ import annotations

from torch.optim import Optimizer

from gradwire.algorithms.asynchronous.settings import check_count


def per_push(optimizer: Optimizer, workers: int) -> Optimizer:
    """Make an optimizer for synchronous training with so many workers one for an `AsyncServer`.

    There every worker's gradient makes a step of its own. So a step goes 1/n as far, and momentum
    lasts n times as many steps: m becomes m^(1/n), and Adam's second one likewise. Call it before a
    scheduler is made. The optimizer is changed, and returned.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> sgd = per_push(torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9), workers=4)
    >>> [round(sgd.param_groups[0][name], 4) for name in ("lr", "momentum")]
    [0.026, 0.974]
    """
    check_count("workers", workers, 1)
    for group in optimizer.param_groups:
        group["lr"] /= workers
        if "betas" in group:
            group["betas"] = tuple(_root(beta, workers) for beta in group["betas"])
        elif momentum := group.get("momentum", 0):
            group["momentum"] = _root(momentum, workers)
            group["lr"] *= (1 - group["momentum"]) / (1 - momentum)  # a gradient adds up to as much
    return optimizer


def momentum_of(optimizer: Optimizer) -> float:
    """The share of a step that the next one repeats."""
    group = optimizer.param_groups[0]
    return float(group["betas"][0] if "betas" in group else group.get("momentum", 0.0))


def _root(value: float, degree: int) -> float:
    return float(value ** (1 / degree))  # bits: the server alone has an optimizer
