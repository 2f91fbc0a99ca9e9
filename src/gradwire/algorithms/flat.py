"""The parameters of a model as one flat vector, in the order they are given."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Flat:
    """Reads and writes parameters that require gradients as one vector on the CPU."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        self.params = [each for each in params if each.requires_grad]
        if not self.params:
            raise ValueError("there is no parameter that requires a gradient; pass the model's.")
        self._sizes = [each.numel() for each in self.params]

    @property
    def numel(self) -> int:
        """Values in all."""
        return sum(self._sizes)

    def get(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """A copy of all values."""
        return self._joined(self.params, dtype)

    @torch.no_grad()
    def put(self, vector: Tensor) -> None:
        """Let the parameters have these values, rounded to their own types."""
        for param, part in zip(self.params, torch.split(vector, self._sizes), strict=True):
            param.copy_(part.view_as(param))

    def gradients(self) -> Tensor:
        """A copy of what a backward pass has left in `grad`; zero where it has left nothing."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        return self._joined(found, torch.float32)

    def put_gradients(self, vector: Tensor) -> None:
        """Let the parameters have these as their `grad`; views of `vector` where types agree."""
        for param, part in zip(self.params, torch.split(vector, self._sizes), strict=True):
            param.grad = part.view_as(param).to(param.dtype)

    def gradient(self, loss: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """That of `loss`; zero where it does not depend on a parameter."""
        found = torch.autograd.grad(loss, self.params, allow_unused=True, materialize_grads=True)
        return self._joined(found, dtype)

    @staticmethod
    def _joined(tensors: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
        parts = [each.detach().reshape(-1).to("cpu", dtype) for each in tensors]
        return torch.cat(parts)
