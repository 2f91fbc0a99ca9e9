"""The inner loops, with the same names and arguments in every backend.

`reference` is plain torch and the definition; `cpu` is Numba and must give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import ModuleType


def for_device(device: torch.device) -> ModuleType:
    """The kernels for tensors on `device`. There is no slow path in silence."""
    if device.type == "cpu":
        from gradwire.kernels import cpu  # Numba is slow to import and not always needed

        return cpu
    raise NotImplementedError(
        f"gradwire has kernels for CPU tensors, got one on {device}; move it with `.cpu()`."
    )
