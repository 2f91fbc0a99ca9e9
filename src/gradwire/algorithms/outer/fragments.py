"""Groups of tensors that are exchanged together, with the weights that all workers agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.collectives.parts import Part
from gradwire.reduction.parameters import Parameter


@dataclass(frozen=True)
class Slot:
    """Where a tensor of the model lies in the vectors of its fragment."""

    tensor: Parameter
    start: int
    stop: int

    def of(self, flat: Tensor) -> Tensor:
        """Its values in a vector of the fragment."""
        return flat[self.start : self.stop]

    def put(self, flat: Tensor) -> None:
        """Let the model have its values in a vector of the fragment."""
        self.tensor.value.copy_(self.of(flat).view(self.tensor.value.shape))

    def rounded(self, flat: Tensor) -> Tensor:
        """The same in the type that the model has them in: float16 cannot be everywhere."""
        return self.of(flat).to(self.tensor.value.dtype).to(torch.float32)


class Fragment:
    """Some tensors of the model, and the vectors that stand for them, the same on every worker.

    weights: what all workers agree on, in float32, as of the last outer step.
    velocity: the momentum of the outer steps.

    Parameters come first, `trained` values; then buffers, which take no outer step.
    """

    def __init__(self, tensors: Sequence[Parameter]) -> None:
        self.slots: list[Slot] = []
        at = 0
        for each in sorted(tensors, key=lambda each: not each.is_trained):
            self.slots.append(Slot(each, at, at + each.value.numel()))
            at += each.value.numel()
        self.trained = sum(each.value.numel() for each in tensors if each.is_trained)
        self.weights = self.current()
        self.velocity = torch.zeros(self.trained)
        self.exchanged = 0
        """The inner step after which it was exchanged last."""

    def current(self) -> Tensor:
        """The tensors of this worker's model, in float32."""
        values = [slot.tensor.value.detach().reshape(-1) for slot in self.slots]
        return torch.cat([each.to(torch.float32) for each in values])

    def change(self) -> Tensor:
        """The outer gradient: the agreed weights less those of this worker."""
        start = torch.cat([slot.rounded(self.weights) for slot in self.slots])
        now = self.current()
        same = start == now  # an infinity in a buffer, less itself, would not be a number
        return start.sub_(now).masked_fill_(same, 0.0)

    def outer_step(self, mean: Tensor, lr: float, momentum: float) -> None:
        """Nesterov's step along the mean outer gradient; buffers become their mean."""
        gradient = mean[: self.trained]
        self.velocity.mul_(momentum).add_(gradient)
        ahead = torch.mul(self.velocity, momentum).add_(gradient)
        self.weights[: self.trained].sub_(ahead.mul_(lr))
        self.weights[self.trained :].sub_(mean[self.trained :])

    @torch.no_grad()
    def put(self, flat: Tensor) -> None:
        """Let the model have these values."""
        for slot in self.slots:
            slot.put(flat)

    def parts(self, flat: Tensor) -> list[Part]:
        """A vector of the fragment, as it is reduced."""
        return [
            Part(slot.of(flat), each.number, layout=each.layout, name=each.name)
            for slot in self.slots
            for each in (slot.tensor,)
        ]


def split(tensors: Sequence[Parameter], count: int) -> list[Fragment]:
    """`count` fragments of about as many values: the largest tensors first, each to the lightest.

    No tensor is cut.
    """
    groups: list[list[Parameter]] = [[] for _ in range(count)]
    for each in sorted(tensors, key=lambda each: -each.value.numel()):
        lightest = min(groups, key=lambda group: sum(other.value.numel() for other in group))
        lightest.append(each)
    return [Fragment(sorted(group, key=lambda each: each.number)) for group in groups]
