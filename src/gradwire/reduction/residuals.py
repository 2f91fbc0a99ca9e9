"""What this worker owes: what its messages have not said of its gradients, by name.

For DDP the name is that of a parameter, never the number of a bucket: DDP rebuilds and reorders its
buckets. For FSDP it is a module and a leg.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Residuals:
    """One flat float32 tensor for each name, zero until something is owed."""

    def __init__(self) -> None:
        self._owed: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] | None = None

    def of(self, name: str, numel: int) -> Tensor:
        """What is owed of the `numel` values called `name`."""
        if name not in self._owed:
            self._owed[name] = torch.zeros(numel)
        return self._owed[name]

    @property
    def nbytes(self) -> int:
        """Memory that they take, and the copy of them if there is one."""
        return sum(each.nbytes for each in (*self._owed.values(), *(self._before or {}).values()))

    def scale(self, factor: float) -> None:
        """Multiply all that is owed."""
        for residual in self._owed.values():
            residual.mul_(factor)

    def remember(self) -> None:
        """Keep a copy, for `undo`."""
        before = self._before = {} if self._before is None else self._before
        for name, residual in self._owed.items():
            if name in before:
                before[name].copy_(residual)
            else:
                before[name] = residual.clone()

    def undo(self) -> None:
        """Take the copy back. What was not owed then was zero."""
        for name, residual in self._owed.items():
            if self._before is not None and name in self._before:
                residual.copy_(self._before[name])
            else:
                residual.zero_()

    def save(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """A copy of those called in `sizes`, of so many values each."""
        return {name: self.of(name, numel).clone() for name, numel in sizes.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Owe what is saved and nothing else."""
        for name, residual in self._owed.items():
            if name not in saved:
                residual.zero_()
        for name, residual in saved.items():
            self.of(name, residual.numel()).copy_(residual)
