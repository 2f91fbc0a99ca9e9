"""Repeated work among workers: how long it took, and what it took of the processor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Cost:
    """Seconds of one run: by the clock, and of this worker's cores. Means over the workers."""

    wall_s: float
    cpu_s: float


def repeated(work: Callable[[], object], seconds: float, least: int = 3, most: int = 200) -> Cost:
    """What `work`, a collective, costs if it is done again and again for about `seconds`."""
    work()
    count = _agreed_count(work, seconds, least, most)
    dist.barrier()
    cpu, walls = time.process_time(), []
    for _ in range(count):
        start = time.perf_counter()
        work()
        walls.append(time.perf_counter() - start)
    return mean_cost(statistics.median(walls), (time.process_time() - cpu) / count)


def sustained(work: Callable[[], object], seconds: float) -> Cost:
    """The same, but the mean of all runs: what a shaper lets through at first counts for less."""
    work()
    count = _agreed_count(work, seconds, 3, 10_000)
    dist.barrier()
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(count):
        work()
    dist.barrier()
    wall_s = (time.perf_counter() - start) / count
    return mean_cost(wall_s, (time.process_time() - cpu) / count)


def mean_cost(wall_s: float, cpu_s: float) -> Cost:
    """The same on every worker."""
    return Cost(*mean(wall_s, cpu_s))


def mean(*values: float) -> list[float]:
    """Each over all workers."""
    both = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(both)
    return (both / dist.get_world_size()).tolist()


def goes_on(done: int, elapsed: float, seconds: float, least: int, most: int) -> bool:
    """Is another round due, of at least `least` and in about so many seconds? Rank 0 decides."""
    enough = torch.tensor(done >= most or (done >= least and elapsed > seconds))
    dist.broadcast(enough, 0)
    return not enough.item()


def _agreed_count(work: Callable[[], object], seconds: float, least: int, most: int) -> int:
    """How often. The slowest decides: who only sends may be done when nothing has arrived."""
    dist.barrier()
    start = time.perf_counter()
    work()
    count = torch.tensor(seconds / max(time.perf_counter() - start, 1e-6))
    dist.all_reduce(count, dist.ReduceOp.MIN)
    return int(min(max(count.item(), least), most))
