"""The inner loops, with the same names and arguments in every backend.

`protocol` says what each of them does; `reference` is plain torch and the definition of every bit;
`cpu` is Numba and `gpu` Triton, and both must give the same bits.
"""

from __future__ import annotations

from typing import cast

import torch

from gradwire.kernels.protocol import Kernels

__all__ = ["Kernels", "for_device"]


def for_device(device: torch.device) -> Kernels:
    """The kernels for tensors on `device`. There is no slow path in silence."""
    if device.type == "cpu":
        from gradwire.kernels import cpu  # Numba is slow to import and not always needed

        return cpu
    if device.type == "cuda":  # ROCm calls itself so too
        return _gpu(device)
    raise NotImplementedError(
        f"gradwire has kernels for CPU and CUDA tensors, got one on {device}; move it with "
        "`.cpu()`."
    )


def _gpu(device: torch.device) -> Kernels:
    """Triton's; those that it lacks say so when they are asked for."""
    try:
        from gradwire.kernels import gpu
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "triton":
            raise
        raise NotImplementedError(
            f"gradwire's kernels for {device} need Triton, which is not installed: "
            "`pip install gradwire[gpu]`, or move the tensor with `.cpu()`."
        ) from missing
    return cast(Kernels, gpu)
