"""What `gradwire probe` has measured, its file, and what the model makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gradwire.planner.layout import Ready
from gradwire.planner.messages import Messages
from gradwire.planner.network import Network
from gradwire.planner.predict import Model, Setting
from gradwire.planner.rates import JOB_S, Rates, work_of
from gradwire.planner.work import HALF, Work, raw

VERSION = 1
LEAST = 0.6
"""Of the time by the clock, if the cores say less: their account is noisy where steps are short."""


@dataclass(frozen=True)
class Profile:
    """One probe.

    link: what `Network` takes, beside rates one way and both ways; `curves` by collective.
    cores: processors of the machine for each of its workers.
    model: when buckets are ready, with `compute_s` by the clock and `cpu_s` of the cores.
    lanes: for each codec what its jobs took, in the lanes of a real attachment.
    rates: for each codec seconds a value, alone and beside a busy core (`Rates`).
    raw_s, cast_s: seconds a value of a product, and of a cast to float16 and back.
    """

    machine: str
    workers: int
    cores: float
    link: Mapping[str, float]
    curves: Mapping[str, Any]
    model: Mapping[str, Any]
    lanes: tuple[Mapping[str, Any], ...]
    rates: Mapping[str, Any]
    raw_s: float
    cast_s: float
    slowdown: Mapping[str, float] = field(default_factory=dict)
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def codecs(self) -> tuple[str, ...]:
        """Those that were measured."""
        return tuple(self.rates)

    def network(self) -> Network:
        """The link as it is."""
        known = {each.name for each in fields(Network)} - {"workers"}
        return Network(self.workers, **{k: v for k, v in self.link.items() if k in known})

    def setting(self) -> Setting:
        """A step here and now."""
        buckets = [Ready(b["at_s"], tuple(b["sizes"])) for b in self.model["buckets"]]
        model = Model(tuple(buckets), self.model["compute_s"])
        return Setting(self.network(), model, self.cores, raw_s=self.raw_s)

    def half(self) -> Work:
        """PyTorch's own float16 hook."""
        return raw(HALF, self.workers, 2, first_s=self.cast_s / 2, last_s=self.cast_s / 2)

    def work(self, spec: str, workers: int | None = None) -> Work:
        """What a codec does: as its lanes did, or by its rates among other numbers of workers."""
        workers = self.workers if workers is None else workers
        rates = Rates(**self.rates[spec]["busy"])
        if Messages(spec, workers).collective == "all_reduce":
            return raw(spec, workers, first_s=self.raw_s)
        lane = next((lane for lane in self.lanes if lane["codec"] == spec), None)
        job_s = self._job_s()
        if lane is None or workers != self.workers:
            return work_of(rates, workers, job_s)
        return _measured(lane, work_of(rates, workers, job_s), self.network(), self.cores)

    def _job_s(self) -> float:
        """What a job costs beside its values: the mean of all codecs."""
        found = [_job_cpu_s(lane, self.network(), self.cores) for lane in self.lanes]
        return sum(found) / len(found) if found else JOB_S


def read(path: Path) -> Profile:
    """The profile in a file. Raises `ValueError` with a sentence if there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} is no profile ({error}); write one with `gradwire probe`."
        ) from None
    found = found[0] if isinstance(found, list) and found else found
    names = {each.name for each in fields(Profile)}
    if not isinstance(found, dict) or set(found) != names:
        raise ValueError(f"{path} is no profile; write one with `gradwire probe --json {path}`.")
    if found["version"] != VERSION:
        raise ValueError(
            f"{path} is a profile of version {found['version']}, and this is {VERSION}; probe anew."
        )
    return Profile(**{**found, "lanes": tuple(found["lanes"])})


def _job_cpu_s(lane: Mapping[str, Any], net: Network, cores: float) -> float:
    """From several small jobs and one."""
    small, cut = lane["small"], lane["cut"]
    more = int(lane["pieces"]) - 1
    cpu_s = cut["cpu_s"] - small["cpu_s"] - net.send_cpu * (cut["nbytes"] - small["nbytes"])
    return max(
        float(cpu_s) / more - int(lane["small_numel"]) * _cpu_per_value(lane, net, cores), 0.0
    )


def _cpu_per_value(lane: Mapping[str, Any], net: Network, cores: float) -> float:
    """Of encoding and decoding; what sending takes is counted elsewhere."""
    large, small = lane["large"], lane["small"]
    cpu_s = large["cpu_s"] - small["cpu_s"] - net.send_cpu * (large["nbytes"] - small["nbytes"])
    clock = sum(large[name] - small[name] for name in ("encode_s", "decode_s"))
    least = float(LEAST * clock * min(1.0, cores))
    return max(float(cpu_s), least) / int(lane["numel"] - lane["small_numel"])


def _measured(lane: Mapping[str, Any], shape: Work, net: Network, cores: float) -> Work:
    """`shape`, whose stages have the right proportions, with the times that were measured."""
    large, small = lane["large"], lane["small"]
    cpu_s = _cpu_per_value(lane, net, cores)
    expected = shape.ask_s + shape.first_s + shape.middle_s + shape.last_s
    scale = cpu_s / expected if expected else 1.0
    sent = (large["nbytes"] - small["nbytes"]) / (lane["numel"] - lane["small_numel"])
    wider = sent / shape.bytes_per_value
    return replace(
        shape,
        ask_s=shape.ask_s * scale,
        first_s=shape.first_s * scale,
        middle_s=shape.middle_s * scale,
        last_s=shape.last_s * scale,
        job_s=_job_cpu_s(lane, net, cores),
        first_bytes=shape.first_bytes * wider,
        middle_bytes=shape.middle_bytes * wider,
        ask_bytes=shape.ask_bytes * wider,
    )
