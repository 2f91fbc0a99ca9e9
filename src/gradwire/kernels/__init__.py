"""The inner loops, with the same names and arguments in every backend.

`protocol` says what each of them does; `reference` is plain torch and the definition of every bit;
`cpu` is Numba and must give the same bits.
"""

from __future__ import annotations

import torch

from gradwire.kernels.protocol import Kernels

__all__ = ["Kernels", "for_device"]


def for_device(device: torch.device) -> Kernels:
    """The kernels for tensors on `device`. There is no slow path in silence."""
    if device.type == "cpu":
        from gradwire.kernels import cpu  # Numba is slow to import and not always needed

        return cpu
    raise NotImplementedError(
        f"gradwire has kernels for CPU tensors, got one on {device}; move it with `.cpu()`."
    )
