"""How Numba kernels are called: tensors as arrays, keys as words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.key import Key

NORMS = {None: 0, "max": 1, "l2": 2}
"""The norms as Numba kernels take them."""


def array(x: Tensor) -> Any:
    """The memory of `x` for Numba: bfloat16 as uint16, float16 as int16."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(np.uint16)
    return x.view(torch.int16).numpy() if x.dtype == torch.float16 else x.numpy()


def key_words(key: Key) -> tuple[Any, ...]:
    """The key as Philox takes it."""
    return tuple(np.uint32(word) for word in key.words())
