"""What `gradwire probe` has measured, its file, and what the model makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gradwire.planner.calibrate import calibrated, slowed
from gradwire.planner.layout import Ready
from gradwire.planner.messages import Messages
from gradwire.planner.network import Network
from gradwire.planner.predict import Model, Setting
from gradwire.planner.rates import Rates, work_of
from gradwire.planner.work import HALF, Work, raw

VERSION = 2


@dataclass(frozen=True)
class Profile:
    """One probe.

    link: what `Network` takes, beside rates one way and both ways; `curves` by collective.
    cores: processors of the machine for each of its workers.
    model: when buckets are ready, with `compute_s` by the clock and `cpu_s` of the cores.
    exchanges: for each codec what it took to exchange buckets of the model, and tiny jobs.
    rates: for each codec seconds a value, alone and beside a busy core (`Rates`).
    raw_s, cast_s: seconds a value of a product, and of a cast to float16 and back.
    beside: the codec of a whole step and its `step_s`; empty if that would have taken too long.
    """

    machine: str
    workers: int
    cores: float
    link: Mapping[str, float]
    curves: Mapping[str, Any]
    model: Mapping[str, Any]
    exchanges: tuple[Mapping[str, Any], ...]
    rates: Mapping[str, Any]
    raw_s: float
    cast_s: float
    beside: Mapping[str, Any] = field(default_factory=dict)
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
        compute_s = self.model["compute_s"]
        model = Model(tuple(buckets), compute_s, busy=self.model["cpu_s"] / compute_s)
        there = Setting(self.network(), model, self.cores, raw_s=self.raw_s)
        if not self.beside:
            return there
        return slowed(there, self._work(self.beside["codec"], there), self.beside["step_s"])

    def half(self) -> Work:
        """PyTorch's own float16 hook."""
        return raw(HALF, self.workers, 2, first_s=self.cast_s / 2, last_s=self.cast_s / 2)

    def work(self, spec: str, workers: int | None = None) -> Work:
        """What a codec does: as its lanes did, or by its rates among other numbers of workers."""
        workers = self.workers if workers is None else workers
        rates = Rates(**self.rates[spec]["busy"])
        if Messages(spec, workers).collective == "all_reduce":
            return raw(spec, workers, first_s=self.raw_s)
        found = self._work(spec, self.setting())
        return found if workers == self.workers else work_of(rates, workers, found.job_s)

    def _work(self, spec: str, there: Setting) -> Work:
        shape = work_of(Rates(**self.rates[spec]["busy"]), self.workers)
        exchange = next((each for each in self.exchanges if each["codec"] == spec), None)
        return shape if exchange is None else calibrated(exchange, shape, there)


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
    return Profile(**{**found, "exchanges": tuple(found["exchanges"])})
