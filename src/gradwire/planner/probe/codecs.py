"""What codecs cost, in the lanes of a real attachment: all workers at once, over the link."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.planner.layout import chunk_values
from gradwire.planner.probe.timing import mean

WARM_UP = 2
SMALL, PIECES = 1 << 14, 8


class Flat(nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(g.numel()) for g in gradients])
        self.gradients = gradients

    def forward(self) -> Tensor:
        """A loss with these gradients."""
        pairs = zip(self.weights, self.gradients, strict=True)
        return torch.stack([torch.dot(weight, gradient) for weight, gradient in pairs]).sum()


@dataclass(frozen=True)
class Taken:
    """Of one step: seconds of this worker's cores, by the clock for each stage, and bytes."""

    cpu_s: float
    encode_s: float
    comm_s: float
    decode_s: float
    nbytes: float


def taken(spec: str, gradients: Sequence[Tensor], seconds: float) -> Taken:
    """What a step with these gradients costs, one job for each."""
    ddp = DistributedDataParallel(Flat(gradients), gradient_as_bucket_view=True)
    handle = gw.attach(ddp, spec, lanes=1, chunk=gradients[0].numel())
    for _ in range(WARM_UP):
        ddp().backward()
    count = _count(ddp, seconds)
    before, cpu = handle.stats(), time.process_time()
    for _ in range(count):
        ddp().backward()
    cpu_s, after = (time.process_time() - cpu) / count, handle.stats()
    base = _compute_cpu_s(ddp, count)
    handle.close()
    names = ("encode_s", "comm_s", "decode_s", "bytes_sent")
    stages = [(getattr(after, name) - getattr(before, name)) / count for name in names]
    return Taken(*mean(cpu_s - base, *stages))


def measure(spec: str, gradient: Tensor, seconds: float) -> dict[str, Any]:
    """The costs of a codec: of a chunk, of next to nothing, and of several such jobs.

    `gradient` is as long as one likes: it is cut, or repeated, to a chunk.
    """
    numel = chunk_values(dist.get_world_size())
    chunk = gradient.repeat(-(-numel // gradient.numel()))[:numel]
    small = torch.split(chunk[: PIECES * SMALL], SMALL)
    found = {
        "large": taken(spec, [chunk], seconds / 2),
        "small": taken(spec, small[:1], seconds / 10),
        "cut": taken(spec, small, seconds / 10),
    }
    sizes = {"numel": numel, "small_numel": SMALL, "pieces": PIECES}
    return {"codec": spec, **sizes, **{name: vars(each) for name, each in found.items()}}


def _count(ddp: DistributedDataParallel, seconds: float) -> int:
    """Steps in about so many seconds; rank 0 decides."""
    dist.barrier()
    start = time.perf_counter()
    ddp().backward()
    count = torch.tensor(seconds / (time.perf_counter() - start))
    dist.broadcast(count, 0)
    return int(min(max(count.item(), 2), 50))


def _compute_cpu_s(ddp: DistributedDataParallel, count: int) -> float:
    """What the model itself takes of the cores."""
    with ddp.no_sync():
        ddp().backward()
        cpu = time.process_time()
        for _ in range(count):
            ddp().backward()
    return (time.process_time() - cpu) / count
