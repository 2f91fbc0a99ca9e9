"""When the buckets of a model are ready, if nothing is exchanged."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.planner.probe.timing import mean
from gradwire.reduction.policy import MIN_NUMEL

WARM_UP, LEAST, MOST = 3, 3, 12


def measure(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], seconds: float
) -> dict[str, Any]:
    """`loss(ddp)` is a forward pass. All workers compute at once, and buckets are not sent."""
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    clock = _Clock()
    ddp.register_comm_hook(None, clock.hook())
    for _ in range(WARM_UP):
        clock.step(ddp, loss)
    rows: list[list[float]] = []
    start = time.perf_counter()
    cpu = time.process_time()
    while _goes_on(len(rows), time.perf_counter() - start, seconds):
        rows.append(clock.step(ddp, loss))
    cpu_s = (time.process_time() - cpu) / len(rows)
    columns = [statistics.median(column) for column in zip(*rows, strict=True)]
    *ready, end, cpu_s = mean(*columns, cpu_s)
    buckets = [
        {"at_s": at_s, "sizes": list(sizes)} for at_s, sizes in zip(ready, clock.sizes, strict=True)
    ]
    return {"buckets": buckets, "compute_s": end, "cpu_s": cpu_s, "alone_s": _alone_s(ddp, loss)}


def gradient_of(model: nn.Module) -> Tensor:
    """The last gradients of the parameters that are coded, one after the other."""
    found = [p.grad for p in model.parameters() if p.grad is not None and p.numel() >= MIN_NUMEL]
    return torch.cat([gradient.detach().reshape(-1) for gradient in found])


def _alone_s(ddp: DistributedDataParallel, loss: Callable[[nn.Module], Tensor]) -> float:
    """Seconds of a step under `no_sync`, whose gradients are new memory each time."""
    found = []
    with ddp.no_sync():
        for _ in range(WARM_UP + LEAST):
            ddp.zero_grad()
            dist.barrier()
            start = time.perf_counter()
            loss(ddp).backward()  # type: ignore[no-untyped-call]
            found.append(time.perf_counter() - start)
    return mean(statistics.median(found[WARM_UP:]))[0]


class _Clock:
    """A hook that looks at the time and sends nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sizes: list[tuple[int, ...]] = []

    def hook(self) -> Callable[..., Future[Tensor]]:
        # DDP looks at the name `bucket`, and at annotations, which must not be strings.
        def clock_hook(state, bucket):  # type: ignore[no-untyped-def]
            self.times.append(time.perf_counter())
            self.sizes.append(tuple(p.numel() for p in bucket.parameters()))
            done: Future[Tensor] = Future()
            done.set_result(bucket.buffer())
            return done

        return clock_hook

    def step(self, ddp: nn.Module, loss: Callable[[nn.Module], Tensor]) -> list[float]:
        """When each bucket was ready, and the end, after the start."""
        self.times, self.sizes = [], []
        ddp.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        loss(ddp).backward()  # type: ignore[no-untyped-call]
        return [at - start for at in [*self.times, time.perf_counter()]]


def _goes_on(done: int, elapsed: float, seconds: float) -> bool:
    """Rank 0 decides for all."""
    enough = torch.tensor(done >= MOST or (done >= LEAST and elapsed > seconds))
    dist.broadcast(enough, 0)
    return not enough.item()
