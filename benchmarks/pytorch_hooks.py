"""The gradient hooks that come with PyTorch, as the benchmarks use them."""

from __future__ import annotations

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

ONE_BUCKET_MB = 1000
"""For PowerSGD: with two buckets it deadlocks gloo."""


def register_half(ddp: DistributedDataParallel) -> None:
    """Gradients in float16."""
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)


def register_powersgd(ddp: DistributedDataParallel) -> None:
    """Rank 4, from the first step that the hook allows."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4)
    state.start_powerSGD_iter = 2
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
