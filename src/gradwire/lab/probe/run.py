"""The whole probe, in the order in which it is shown; all workers call it together."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.adaptive import FittedCodec
from gradwire.codecs import parse
from gradwire.lab.probe import beside
from gradwire.lab.probe.exchange import Exchange
from gradwire.lab.probe.link import LinkProbe
from gradwire.lab.probe.model import Steps
from gradwire.lab.probe.timing import mean
from gradwire.planner import rates
from gradwire.planner.messages import Messages
from gradwire.planner.profile import Profile

LINK, MODEL, CODECS = 0.3, 0.15, 0.55
"""Shares of the time: those of the codecs are split among them."""
RATES_NUMEL, LONG, STEPS = 1 << 20, 1 << 24, 8

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
    steps = Steps(module, loss)
    found, gradients = steps.measure(seconds * MODEL / 3), steps.gradients()
    found |= {"name": subject.name, "alone_s": steps.alone_s()}
    say(LINK + MODEL / 2, subject.name)
    lanes, exchanges, speeds = Exchange(), [], {}
    for place, spec in enumerate(specs):
        each = seconds * CODECS / len(specs)
        speeds[spec] = _speeds(spec)
        if _has_lanes(spec):
            bytes_per_value = speeds[spec]["busy"]["bytes_per_value"]
            sent = sum(Messages(spec, dist.get_world_size(), bytes_per_value).per_value())
            per_value_s = sent / link.found["rate"]
            exchanges.append(lanes.measure(spec, gradients, each, per_value_s))
        say(LINK + MODEL + CODECS * (place + 1) / len(specs), spec)
    lanes.close()
    raw_s, cast_s = _plain_costs()
    found_so_far = Profile(
        machine=machine(), workers=dist.get_world_size(),
        cores=(os.cpu_count() or 1) / _local_workers(),
        link=link.found, curves=link.curves, model=found,
        exchanges=tuple(exchanges), rates=speeds, raw_s=raw_s, cast_s=cast_s,
    )  # fmt: skip
    return _with_a_whole_step(found_so_far, module, loss, seconds * MODEL / 2)


def _with_a_whole_step(
    profile: Profile, module: nn.Module, loss: Callable[[nn.Module], Tensor], seconds: float
) -> Profile:
    """With the step of the fastest codec, if there is time for it."""
    there = profile.setting()
    fixed = [
        e["codec"] for e in profile.exchanges if not isinstance(parse(e["codec"]), FittedCodec)
    ]
    expected = {spec: there.predict(profile.work(spec)).step_s for spec in fixed}
    best = min(expected, key=lambda spec: expected[spec], default=None)
    if best is None or expected[best] * STEPS > seconds:
        return profile
    step_s = beside.step_s(module, loss, best, seconds)
    return replace(profile, beside={"codec": best, "step_s": step_s})


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
