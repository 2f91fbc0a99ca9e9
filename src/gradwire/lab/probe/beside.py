"""Whole steps with a codec attached: how much compute slows while it shares cores and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.lab.probe.timing import goes_on, mean

WARM_UP, LEAST, MOST = 3, 5, 40


def step_s(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], spec: str, seconds: float
) -> float:
    """Seconds of a step, the mean over the workers."""
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    handle = gw.attach(ddp, spec)
    found: list[float] = []
    start = time.perf_counter()
    while goes_on(len(found) - WARM_UP, time.perf_counter() - start, seconds, LEAST, MOST):
        ddp.zero_grad()
        dist.barrier()
        begun = time.perf_counter()
        loss(ddp).backward()  # type: ignore[no-untyped-call]
        found.append(time.perf_counter() - begun)
    handle.close()
    return mean(statistics.median(found[WARM_UP:]))[0]
