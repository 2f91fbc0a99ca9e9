"""The model of a server, and the steps that gradients make of it, eq. (1)."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradwire.algorithms.asynchronous.pace import momentum_of
from gradwire.algorithms.asynchronous.settings import AsyncSettings, Usual
from gradwire.algorithms.flat import Flat
from gradwire.kernels.exact import is_finite


class Descent:
    """Makes a step with every gradient that is not too late."""

    def __init__(
        self,
        flat: Flat,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        settings: AsyncSettings,
    ) -> None:
        _check_optimizer(flat, optimizer)
        self.flat = flat
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.settings = settings
        self.version = 0
        self.usual = Usual()
        self.delays: Counter[int] = Counter()
        self.weights = flat.get()
        self._moved = torch.zeros_like(self.weights)

    def refresh(self) -> None:
        """Know the weights again after somebody else has changed them."""
        self.weights = self.flat.get()
        self._moved.zero_()

    def ahead(self) -> Tensor:
        """The weights where momentum will have taken them when the next gradient is back, eq. (4).

        That is where it will be applied, so that is where it should be computed.
        """
        reach = self.settings.reach(self.usual.mean, momentum_of(self.optimizer))
        return self.weights if reach == 0 else self._moved.mul(reach).add_(self.weights)

    def push(self, gradient: Tensor, base: int) -> bool:
        """Make a step, if the gradient is not too late; it was computed at version `base`.

        The gradient is damped and not the step, so that momentum has no more of it either.
        """
        delay = self.version - base
        if delay > self.settings.max_delay:
            return False
        scale = self.settings.factor(delay, self.usual.mean) * self._clipping(gradient)
        self.usual.add(delay)
        self.delays[delay] += 1
        self.flat.put_gradients(gradient * scale if scale < 1 else gradient)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.version += 1
        before, self.weights = self.weights, self.flat.get()
        torch.sub(self.weights, before, out=self._moved)
        self._check_finite()
        return True

    def _clipping(self, gradient: Tensor) -> float:
        if self.settings.clip is None:
            return 1.0
        norm = float(torch.linalg.vector_norm(gradient))  # bits: nobody else makes this step
        return min(1.0, self.settings.clip / norm) if norm > 0 else 1.0

    def is_sound(self) -> bool:
        """Are all weights finite?"""
        return is_finite(self.flat.get())

    def _check_finite(self) -> None:
        if not self.is_sound():
            raise RuntimeError(
                f"the weights of version {self.version} are not finite: training has diverged. "
                "Lower the learning rate, or set `clip`, and go on from the last checkpoint."
            )


def _check_optimizer(flat: Flat, optimizer: Optimizer) -> None:
    theirs = {id(param) for group in optimizer.param_groups for param in group["params"]}
    if any(id(param) not in theirs for param in flat.params):
        raise ValueError(
            "`optimizer` must have all parameters of `model` that require gradients; make it of "
            "`model.parameters()`."
        )
