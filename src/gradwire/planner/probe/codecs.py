"""What codecs cost, in the lanes of a real attachment: all workers at once, over the link."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.planner.messages import IMAGE
from gradwire.planner.probe.timing import mean
from gradwire.reduction.checkpoint import pack
from gradwire.reduction.reducer import chunk_values

WARM_UP = 2
PIECES, STRETCH, LEAST_WIDTH = 3, 1 << 17, 512


class Flat(nn.Module):
    """Parameters whose gradients are given."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(g.shape) for g in gradients])
        self.gradients = gradients

    def forward(self) -> Tensor:
        """A loss with these gradients."""
        pairs = zip(self.weights, self.gradients, strict=True)
        return torch.stack([(weight * gradient).sum() for weight, gradient in pairs]).sum()


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
    module = Flat(gradients)
    ddp = DistributedDataParallel(module, gradient_as_bucket_view=True)
    handle = gw.attach(ddp, spec, lanes=1, chunk=gradients[0].numel())
    if isinstance(handle.codec, gw.GradiVeQ):
        teach(handle, module)
    for _ in range(WARM_UP):
        ddp().backward()
    count = _count(ddp, seconds)
    before = handle.stats()
    cpu_s, after = _cpu_s(ddp, count), handle.stats()
    with ddp.no_sync():
        ddp().backward()
        base = _cpu_s(ddp, count)
    handle.close()
    names = ("encode_s", "comm_s", "decode_s", "bytes_sent")
    stages = [(getattr(after, name) - getattr(before, name)) / count for name in names]
    return Taken(*mean(cpu_s - base, *stages))


def teach(handle: gw.Handle, module: nn.Module) -> None:
    """Put GradiVeQ into its compress phase, by an eighth as many random axes as values."""
    states = {}
    for name, weight in module.named_parameters():
        axes = torch.randn(weight.shape[1], -(-weight.shape[1] // IMAGE))
        basis = torch.linalg.qr(axes).Q.T.contiguous()  # bits: any axes take as long
        states[name] = {"phase": "compress", "basis": basis, "mean": torch.zeros(weight.shape)}
    learned = pack({str(handle.codec): states})
    handle.load_state_dict(handle.state_dict() | {"learned": learned})


def measure(spec: str, gradient: Tensor, seconds: float, width: int) -> dict[str, Any]:
    """The costs of a codec: of a chunk, of a fourth of one, and of several such jobs.

    What they differ in is what values cost, and what jobs cost beside them.
    """
    chunk = sample(gradient, chunk_values(dist.get_world_size()), width)
    quarters = torch.split(chunk, -(-len(chunk) // 4))[:PIECES]
    found = {
        "large": taken(spec, [chunk], seconds / 2),
        "small": taken(spec, quarters[:1], seconds / 4),
        "cut": taken(spec, quarters, seconds / 4),
    }
    sizes = {"numel": chunk.numel(), "small_numel": quarters[0].numel(), "pieces": PIECES}
    return {"codec": spec, **sizes, **{name: vars(each) for name, each in found.items()}}


def sample(gradient: Tensor, numel: int, width: int) -> Tensor:
    """About `numel` values in rows of `width`: stretches from all over the gradient.

    Layers differ, and what a codec takes may depend on what it encodes.
    """
    width = min(max(width, LEAST_WIDTH), STRETCH)
    stretch = STRETCH // width * width
    count = max(1, numel // stretch)
    gradient = gradient.repeat(-(-stretch // gradient.numel()))
    last = gradient.numel() - stretch
    starts = [last * i // max(count - 1, 1) for i in range(count)]
    return torch.cat([gradient[at : at + stretch] for at in starts]).view(-1, width)


def _count(ddp: DistributedDataParallel, seconds: float) -> int:
    """Steps in about so many seconds; rank 0 decides."""
    dist.barrier()
    start = time.perf_counter()
    ddp().backward()
    count = torch.tensor(seconds / (time.perf_counter() - start))
    dist.broadcast(count, 0)
    return int(min(max(count.item(), 4), 50))


def _cpu_s(ddp: DistributedDataParallel, count: int) -> float:
    """Seconds of this worker's cores for a step, the median of some."""
    found = []
    for _ in range(count):
        start = time.process_time()
        ddp().backward()
        found.append(time.process_time() - start)
    return statistics.median(found)
