"""From what the user asked for to a prediction, or to a sentence that says what is wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gradwire.planner import advice, profile, rates, units
from gradwire.planner.network import Network
from gradwire.planner.predict import Model, Setting
from gradwire.planner.work import Work

LATENCY, CORES = "50us", 4.0
MOST_WORKERS = 100_000


@dataclass(frozen=True)
class Planned:
    """A setting, what codecs do in it, and what follows."""

    setting: Setting
    works: tuple[Work, ...]
    rows: tuple[advice.Row, ...]
    refused: dict[str, str]
    rates: dict[str, rates.Rates]
    machine: str

    @property
    def sentence(self) -> str:
        """The recommendation."""
        return advice.sentence(self.setting, self.rows)

    @property
    def plain_s(self) -> float:
        """The step of plain DDP."""
        return self.setting.predict(self.setting.plain()).step_s

    def describe(self) -> str:
        """The setting in words."""
        net, model = self.setting.network, self.setting.model
        left_out = "".join(f" {spec} is left out: {why}" for spec, why in self.refused.items())
        return (
            f"{model.params:,} parameters, {net.workers:,} workers, {units.show_rate(net.rate)}, "
            f"{units.show_seconds(net.share_s)} latency, {units.show_seconds(model.compute_s)} "
            f"compute, {self.setting.cores:.3g} cores a worker; codecs as fast as on "
            f"{self.machine}.{left_out}".rstrip(".")
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        net, model = self.setting.network, self.setting.model
        return {
            "recommendation": self.sentence,
            "setting": {
                "params": model.params,
                "compute_s": model.compute_s,
                "cores": self.setting.cores,
                "network": asdict(net),
                "machine": self.machine,
            },
            "plain_s": self.plain_s,
            "codecs": [row.to_json() for row in self.rows],
            "left_out": self.refused,
        }


@dataclass(frozen=True)
class Request:
    """The command line; None leaves the choice to the profile, or to a default."""

    params: str | None
    workers: int | None
    bandwidth: str | None
    latency: str | None
    compute: str | None
    cores: float | None
    profile: Path | None
    codecs: tuple[str, ...]

    def planned(self) -> Planned:
        """Raises `ValueError` if something is missing or wrong."""
        if self.workers is not None and not 2 <= self.workers <= MOST_WORKERS:
            raise ValueError(f"`--workers` must be 2 to {MOST_WORKERS:,}, got {self.workers}.")
        if self.cores is not None and not 0 < self.cores < 10_000:
            raise ValueError(f"`--cores` must be above 0, got {self.cores:g}.")
        return self._of_numbers() if self.profile is None else self._of_profile(self.profile)

    def _of_numbers(self) -> Planned:
        needed = {"params": self.params, "workers": self.workers, "bandwidth": self.bandwidth,
                  "compute": self.compute}  # fmt: skip
        missing = [f"`--{name}`" for name, value in needed.items() if value is None]
        if missing:
            raise ValueError(
                f"a plan needs {', '.join(missing)} too; or measure with `gradwire probe --json "
                "p.json` and say `--profile p.json`."
            )
        assert self.workers is not None
        setting = Setting(
            network_of(self.workers, self._rate(), self._latency()),
            Model.of(self._params(), self._compute_s()),
            CORES if self.cores is None else self.cores,
            raw_s=rates.table()["rates"]["none"].encode,
        )
        found = rates.rates_of(self.codecs or rates.CODECS)
        works, refused = works_among(found, self.workers)
        return _planned(setting, works, refused, found, rates.table()["machine"])

    def _of_profile(self, path: Path) -> Planned:
        known = profile.read(path)
        workers = known.workers if self.workers is None else self.workers
        specs = self.codecs or known.codecs
        unknown = [spec for spec in specs if spec not in known.codecs]
        if unknown:
            raise ValueError(
                f"{path} has not measured {', '.join(unknown)}; it has {', '.join(known.codecs)}. "
                "Probe with `-c` for each codec."
            )
        setting, works = known.setting(), [known.work(spec, workers) for spec in specs]
        found = {spec: rates.Rates(**known.rates[spec]["busy"]) for spec in specs}
        return _planned(self._changed(setting, workers), works, {}, found, known.machine)

    def _changed(self, setting: Setting, workers: int) -> Setting:
        """The setting of a profile, with what was asked for in place of what was measured."""
        if self.latency is not None or workers != setting.network.workers:
            net = setting.network
            latency = net.share_s if self.latency is None else self._latency()
            ideal = Network.ideal(workers, net.rate, latency)
            costs = {name: getattr(net, name) for name in ("send_cpu", "ring_cpu", "half_cpu")}
            setting = replace(setting, network=replace(ideal, **costs))
        if self.bandwidth is not None:
            setting = setting.at_rate(self._rate())
        if self.params is not None or self.compute is not None:
            params = setting.model.params if self.params is None else self._params()
            compute_s = setting.model.compute_s if self.compute is None else self._compute_s()
            setting = replace(setting, model=Model.of(params, compute_s))
        return setting if self.cores is None else replace(setting, cores=self.cores)

    def _params(self) -> int:
        return units.count(self.params or "", "--params")

    def _rate(self) -> float:
        return units.rate(self.bandwidth or "")

    def _latency(self) -> float:
        return units.seconds(self.latency or LATENCY, "--latency")

    def _compute_s(self) -> float:
        return units.seconds(self.compute or "", "--compute")


def network_of(workers: int, rate: float, latency: float) -> Network:
    """A network of which no more is known; sending costs the cores what it cost the table's."""
    cpu = rates.table()["send_cpu"]
    ideal = Network.ideal(workers, rate, latency)
    return replace(ideal, send_cpu=cpu, ring_cpu=cpu, half_cpu=cpu)


def works_among(found: dict[str, rates.Rates], workers: int) -> tuple[list[Work], dict[str, str]]:
    """What codecs do; those that cannot be added among so many workers are left out, and why."""
    tried = {spec: _work(each, workers) for spec, each in found.items()}
    refused = {spec: str(work) for spec, work in tried.items() if isinstance(work, ValueError)}
    return [work for work in tried.values() if isinstance(work, Work)], refused


def _work(each: rates.Rates, workers: int) -> Work | ValueError:
    try:
        return rates.work_of(each, workers)
    except ValueError as error:
        return error


def _planned(
    setting: Setting,
    works: list[Work],
    refused: dict[str, str],
    found: dict[str, rates.Rates],
    machine: str,
) -> Planned:
    if not works:
        raise ValueError(f"no codec is left to plan with: {' '.join(refused.values())}")
    bf16 = next((work for work in works if work.codec == advice.BF16), None)
    if bf16 is None:
        bf16 = rates.work_of(rates.table()["rates"]["bf16"], setting.network.workers)
    rows = tuple(advice.rows(setting, works, bf16))
    return Planned(setting, tuple(works), rows, refused, found, machine)
