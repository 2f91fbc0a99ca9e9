"""What this worker owes: what its messages have not said of its gradients, by name.

For DDP the name is that of a parameter, never the number of a bucket: DDP rebuilds and reorders its
buckets. For FSDP it is a module and a leg.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradwire.transport.device import HOST, Device


class Residuals:
    """One flat float32 tensor for each name, zero until something is owed.

    They are where jobs work on `device`, and are touched there and nowhere else.
    """

    def __init__(self, device: Device = HOST) -> None:
        self.device = device
        self._owed: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] | None = None

    def of(self, name: str, numel: int) -> Tensor:
        """What is owed of the `numel` values called `name`."""
        if name not in self._owed:
            with self.device.entered():
                self._owed[name] = torch.zeros(numel, device=self.device.memory)
        return self._owed[name]

    @property
    def nbytes(self) -> int:
        """Memory that they take, and the copy of them if there is one."""
        return sum(each.nbytes for each in (*self._owed.values(), *(self._before or {}).values()))

    def scale(self, factor: float | Tensor) -> None:
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

    def undo_if(self, undone: Tensor) -> None:
        """`undo` if a scalar on the device says so."""
        for name, residual in self._owed.items():
            before = (self._before or {}).get(name)
            kept = torch.zeros_like(residual) if before is None else before
            torch.where(undone, kept, residual, out=residual)

    def save(self, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """A copy of those called in `sizes`, of so many values each, on the CPU."""
        owed = {name: self.of(name, numel) for name, numel in sizes.items()}
        with self.device.entered():
            return {name: residual.to("cpu", copy=True) for name, residual in owed.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Owe what is saved and nothing else."""
        known = {name: self.of(name, residual.numel()) for name, residual in saved.items()}
        with self.device.entered():
            for name, residual in self._owed.items():
                if name in known:
                    residual.copy_(saved[name])
                else:
                    residual.zero_()
