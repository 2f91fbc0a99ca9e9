"""When the buckets of a model are ready, if nothing is exchanged."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.lab.probe.timing import goes_on, mean
from gradwire.reduction.policy import MIN_NUMEL

WARM_UP, LEAST, MOST = 3, 3, 40


@dataclass(frozen=True)
class Gradients:
    """A copy of a bucket of gradients, one parameter after the other, and their shapes."""

    values: Tensor
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        """Those of the parameters, in values."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    def coded(self) -> Gradients:
        """Without the parameters that travel raw."""
        kept = [n >= MIN_NUMEL for n in self.sizes]
        pieces = zip(torch.split(self.values, self.sizes), self.shapes, kept, strict=True)
        found = [(values, shape) for values, shape, keep in pieces if keep]
        values = [values for values, _ in found] or [self.values[:0]]
        return Gradients(torch.cat(values), tuple(shape for _, shape in found))


class Steps:
    """Steps of a model in which all workers compute, and nothing is sent.

    `loss(ddp)` is a forward pass.
    """

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> None:
        self._ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        self._loss = loss
        self._clock = _Clock()
        self._ddp.register_comm_hook(None, self._clock.hook())

    def measure(self, seconds: float) -> dict[str, Any]:
        """When buckets are ready, the end of a step, and what it takes of a worker's cores."""
        rows: list[list[float]] = []
        start = time.perf_counter()
        while goes_on(len(rows) - WARM_UP, time.perf_counter() - start, seconds, LEAST, MOST):
            rows.append(self._clock.step(self._ddp, self._loss))
        columns = zip(*rows[WARM_UP:], strict=True)
        *ready, end, cpu_s = mean(*(statistics.median(column) for column in columns))
        pairs = zip(ready, self._clock.sizes, strict=True)
        buckets = [{"at_s": at_s, "sizes": list(sizes)} for at_s, sizes in pairs]
        return {"buckets": buckets, "compute_s": end, "cpu_s": cpu_s}

    def gradients(self) -> list[Gradients]:
        """The buckets of one more step."""
        return self._clock.copies(self._ddp, self._loss)

    def alone_s(self) -> float:
        """Seconds of a step under `no_sync`, whose gradients are new memory each time."""
        found = []
        with self._ddp.no_sync():
            for _ in range(WARM_UP + LEAST):
                self._ddp.zero_grad()
                dist.barrier()
                start = time.perf_counter()
                self._loss(self._ddp).backward()  # type: ignore[no-untyped-call]
                found.append(time.perf_counter() - start)
        return mean(statistics.median(found[WARM_UP:]))[0]


class _Clock:
    """A hook that looks at the time and sends nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sizes: list[tuple[int, ...]] = []
        self._copied: list[Gradients] | None = None

    def hook(self) -> Callable[..., Future[Tensor]]:
        # DDP looks at the name `bucket`, and at annotations, which must not be strings.
        def clock_hook(state, bucket):  # type: ignore[no-untyped-def]
            self.times.append(time.perf_counter())
            self.sizes.append(tuple(p.numel() for p in bucket.parameters()))
            if self._copied is not None:
                shapes = tuple(tuple(p.shape) for p in bucket.parameters())
                self._copied.append(Gradients(bucket.buffer().float().clone(), shapes))
            done: Future[Tensor] = Future()
            done.set_result(bucket.buffer())
            return done

        return clock_hook

    def step(self, ddp: nn.Module, loss: Callable[[nn.Module], Tensor]) -> list[float]:
        """When each bucket was ready and when it was over, after the start; seconds of cores."""
        self.times, self.sizes = [], []
        ddp.zero_grad()
        dist.barrier()
        cpu, start = time.process_time(), time.perf_counter()
        loss(ddp).backward()  # type: ignore[no-untyped-call]
        ends = [at - start for at in [*self.times, time.perf_counter()]]
        return [*ends, time.process_time() - cpu]

    def copies(self, ddp: nn.Module, loss: Callable[[nn.Module], Tensor]) -> list[Gradients]:
        """The buckets of one more step."""
        self._copied = []
        self.step(ddp, loss)
        found, self._copied = self._copied, None
        return found
