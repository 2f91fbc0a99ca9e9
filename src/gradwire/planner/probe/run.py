"""The whole probe, in the order in which it is shown; all workers call it together."""

from __future__ import annotations

import os
import platform
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.codecs import parse
from gradwire.key import Key
from gradwire.planner import rates
from gradwire.planner.messages import Messages
from gradwire.planner.probe import codecs, model
from gradwire.planner.probe.link import LinkProbe
from gradwire.planner.probe.timing import mean
from gradwire.planner.profile import Profile

LINK, MODEL, CODECS = 0.3, 0.15, 0.55
"""Shares of the time: those of the codecs are split among them."""
RATES_NUMEL, LONG = 1 << 20, 1 << 24

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Subject:
    """What is trained: `make` gives a model and a function that gives its loss, DDP around it."""

    make: Callable[[], tuple[nn.Module, Callable[[nn.Module], Tensor]]]
    name: str


def probe(subject: Subject, specs: Sequence[str], seconds: float, say: Progress) -> Profile:
    """Everything, in about so many seconds."""
    link = LinkProbe(seconds * LINK)
    for place, what in enumerate(link.run()):
        say(LINK * (place + 1) / 5, what)
    module, loss = subject.make()
    found = model.measure(module, loss, seconds * MODEL / 2)
    gradient = model.gradient_of(module)
    slowdown = _beside(module, loss, gradient, found, seconds * MODEL / 2)
    say(LINK + MODEL, subject.name)
    largest = max(module.parameters(), key=lambda p: p.numel())
    width = largest.shape[1] if largest.dim() == 2 else 0
    lanes, speeds = [], {}
    for place, spec in enumerate(specs):
        each = seconds * CODECS / len(specs)
        speeds[spec] = _speeds(spec)
        if _has_lanes(spec):
            lanes.append(codecs.measure(spec, gradient, each / 2, width))
        say(LINK + MODEL + CODECS * (place + 1) / len(specs), spec)
    raw_s, cast_s = _plain_costs()
    return Profile(
        machine=machine(), workers=dist.get_world_size(),
        cores=(os.cpu_count() or 1) / _local_workers(),
        link=link.found, curves=link.curves, model=found | {"name": subject.name},
        lanes=tuple(lanes), rates=speeds, raw_s=raw_s, cast_s=cast_s, slowdown=slowdown,
    )  # fmt: skip


def machine() -> str:
    """The processor, for people."""
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return f"{found[1] if found else platform.processor()}, {os.cpu_count()} cores"


def flat(params: int) -> Subject:
    """A model of which only the size matters: layers that are alike."""

    def make() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
        width = max(16, round((params / 8) ** 0.5))
        layers = max(1, round(params / width**2))
        inputs = torch.randn(16, width)
        found = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        return found, lambda ddp: ddp(inputs).square().mean()

    return Subject(make, f"{params:,} parameters")


def _has_lanes(spec: str) -> bool:
    """Is it sent by lanes from the first step on?"""
    return Messages(spec, 2).collective != "all_reduce"


def _speeds(spec: str) -> dict[str, Any]:
    """Of one core alone while the others wait, and of all workers at once."""
    own: dict[str, Any] = {}
    dist.barrier()
    if dist.get_rank() == 0:
        own["alone"] = asdict(rates.measure(spec, RATES_NUMEL))
    dist.barrier()
    own["busy"] = asdict(rates.measure(spec, RATES_NUMEL))
    box = [own]
    dist.broadcast_object_list(box, 0)
    return box[0]


def _beside(
    module: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    gradient: Tensor,
    found: dict[str, Any],
    seconds: float,
) -> dict[str, float]:
    """How much longer the backward pass takes while a codec encodes in another thread."""
    codec, over = parse("qsgd:bits=4"), threading.Event()
    room = torch.zeros(codec.max_nbytes(gradient.numel()), dtype=torch.uint8)
    key = Key()
    codec.encode_into(gradient, room, key)
    count = [0]

    def encode() -> None:
        while not over.is_set():
            codec.encode_into(gradient, room, key)
            count[0] += 1

    thread = threading.Thread(target=encode, daemon=True)
    start = time.perf_counter()
    thread.start()
    try:
        beside = model.measure(module, loss, seconds)
    finally:
        over.set()
        thread.join()
    encoded = count[0] * gradient.numel() / (time.perf_counter() - start)
    compute_s, gvps = mean(beside["compute_s"], encoded / 1e9)
    return {
        "compute_s": found["compute_s"],
        "beside_s": compute_s,
        "ratio": compute_s / found["compute_s"],
        "encode_gvps": gvps,
    }


def _plain_costs() -> tuple[float, float]:
    """Seconds a value of a product, and of float16 there and back, as PyTorch's hook has it."""
    x = torch.zeros(LONG)

    def cast() -> None:
        x.copy_(x.to(torch.float16).div_(2))

    raw_s, cast_s = mean(rates.best(lambda: x.mul_(0.5)), rates.best(cast))
    return raw_s / LONG, cast_s / LONG


def _local_workers() -> int:
    """Workers on this machine, which share its cores."""
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, platform.node())
    return names.count(platform.node())
