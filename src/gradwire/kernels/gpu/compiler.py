"""How kernels are compiled and launched: the bits of the reference, 128 threads a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from gradwire.key import Key

THREADS = 128
"""Of a program. Four values of each eighth of its tiles are then a thread's (`tiles.py`)."""
EXACT = {"enable_fp_fusion": False}
"""Triton fuses a * b + c by default, which rounds once where the reference rounds twice."""

_VARYING = [
    "numel", "counter", "shift", "c1", "c2", "c3", "k0", "k1", "tiles", "size", "top", "levels",
    "zero", "times", "centre", "peers", "terms", "count", "headroom", "places", "base", "half",
    "largest", "number", "first", "limit", "stop",
]  # fmt: skip
"""Arguments that change from call to call: Triton would compile again for some of their values."""
_ROOMY: set[Any] = set()


def jit(function: Callable[..., Any]) -> Any:
    """A function that kernels call."""
    return triton.jit(function)


def kernel(function: Callable[..., Any]) -> Any:
    """A function that `launch` starts."""
    return triton.jit(function, do_not_specialize=_VARYING)


def roomy_kernel(function: Callable[..., Any]) -> Any:
    """One whose threads may have all registers: NVIDIA's compiler would rather spill a value or two
    and have room for one more program."""
    made = kernel(function)
    _ROOMY.add(made)
    return made


def registers(start: Any) -> dict[str, int]:
    """How the compiler for NVIDIA is told so."""
    return {"maxnreg": 255} if start in _ROOMY else {}


def static(function: Callable[..., Any]) -> Any:
    """A function of constants, computed by the compiler."""
    return triton.constexpr_function(function)


def launch(start: Any, programs: int, *args: Any, **constants: Any) -> None:
    """Start so many programs on the device of the first argument."""
    if programs:
        room = {} if torch.version.hip else registers(start)
        with torch.cuda.device_of(args[0]):
            start[(programs,)](*args, **constants, **EXACT, **room, num_warps=_num_warps(args[0]))


def _num_warps(x: Tensor) -> int:
    """AMD's data-centre chips have warps of 64 threads."""
    return THREADS // (torch.cuda.get_device_properties(x.device).warp_size if x.is_cuda else 32)


def single(value: float) -> float:
    """Rounded to float32, as kernels take it."""
    return float(np.float32(value))


def stream(key: Key, offset: int = 0) -> dict[str, int]:
    """The random stream of a key from value `offset` on, as kernels take it.

    Words are passed as int32, whatever their top bit is: Triton would compile again for int64.
    """
    words = zip(("counter", "c1", "c2", "c3", "k0", "k1"), (offset // 8, *key.words()), strict=True)
    return {name: ((word + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) for name, word in words}


def addresses(tensors: Sequence[Tensor]) -> Tensor:
    """Where tensors start, for a kernel that reads any number of them."""
    table = torch.tensor([x.data_ptr() for x in tensors], dtype=torch.int64)
    device = tensors[0].device
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
