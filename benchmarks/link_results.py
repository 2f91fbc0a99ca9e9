"""What `links.py` measures: a row for each variant on each link, their file and their table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RATES = {"20mbit": 2e7, "100mbit": 1e8, "1gbit": 1e9, "10gbit": 1e10, "loopback": None}
TITLES = {
    "20mbit": "20 Mbit/s",
    "100mbit": "100 Mbit/s",
    "1gbit": "1 Gbit/s",
    "10gbit": "10 Gbit/s",
}
COMPUTE, PLAIN, HALF, POWERSGD = BASELINES = "compute alone", "plain DDP", "fp16 hook", "PowerSGD"
REACHED = 0.9  # of the shaped rate: headers of Ethernet, IP and TCP take 5 %


@dataclass(frozen=True)
class Link:
    """What the ratios of one run are bound to."""

    rate: str
    workers: int
    model: str

    @property
    def speed(self) -> str:
        return TITLES.get(self.rate, self.rate)

    @property
    def suffix(self) -> str:
        return ", CNN" if self.model == "cnn" else ""

    def __str__(self) -> str:
        return f"{self.speed}, {self.workers} workers{self.suffix}"


@dataclass(frozen=True)
class Row:
    """One variant on one link; bytes are those of a step, and None where nothing counts them."""

    rate: str
    workers: int
    model: str
    what: str
    step_s: float
    ratio: float  # to plain DDP
    limit_s: float  # the larger of compute and payload over the rate
    wire_bytes: float | None  # that left the interface; loopback's is that of all workers
    stats_bytes: float | None  # that `handle.stats()` counts
    buffer_bytes: int | None
    residual_bytes: int | None
    reached_bps: float  # by a plain transfer between all workers
    seconds: list[float]

    @property
    def link(self) -> Link:
        return Link(self.rate, self.workers, self.model)


def rows_of(link: Link, reached_bps: float, measured: Iterable[dict]) -> list[Row]:
    """Rows of one link from what its worker printed, all rounds of a variant in one."""
    variants: dict[str, dict] = {}
    for found in measured:
        earlier = variants.get(found["what"], {"seconds": []})
        variants[found["what"]] = found | {"seconds": earlier["seconds"] + found["seconds"]}
    step_s = {what: statistics.median(found["seconds"]) for what, found in variants.items()}
    return [
        Row(
            **asdict(link),
            what=what,
            step_s=step_s[what],
            ratio=step_s[what] / step_s[PLAIN],
            limit_s=max(step_s[COMPUTE], payload_s(found, RATES[link.rate])),
            wire_bytes=None if RATES[link.rate] is None else found["wire_bytes"],
            stats_bytes=found["stats_bytes"],
            buffer_bytes=found["buffer_bytes"],
            residual_bytes=found["residual_bytes"],
            reached_bps=reached_bps,
            seconds=found["seconds"],
        )
        for what, found in variants.items()
    ]


def payload_s(found: dict, rate: float | None) -> float:
    """What the link needs at least; PyTorch's own hooks are only counted at the interface."""
    if rate is None:
        return 0.0
    payload = found["wire_bytes"] if found["stats_bytes"] is None else found["stats_bytes"]
    return payload * 8 / rate


def read(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text())]


def write(path: Path, rows: Sequence[Row]) -> None:
    """All of the rows or, if this is cut short, those that were there before."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"[\n{lines}\n]\n")
    part.replace(path)


def merged(earlier: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """A link that was measured anew is replaced whole: its ratios hold inside one run."""
    anew = {row.link for row in rows}
    return [row for row in earlier if row.link not in anew] + list(rows)


def links_of(rows: Iterable[Row]) -> list[Link]:
    """Every link, MLP before CNN, slow before fast, few workers before many."""
    rates = list(RATES)
    return sorted(
        {row.link for row in rows},
        key=lambda link: (link.model != "mlp", rates.index(link.rate), link.workers),
    )


def table(rows: Sequence[Row]) -> str:
    head = ["link", "what", "s/step", "ratio", "limit", "MB on wire", "MB in stats"]
    cells = [
        [
            str(row.link), row.what, f"{row.step_s:.3f}", f"{row.ratio:.3f}",
            f"{row.limit_s / row.step_s:.0%}", megabytes(row.wire_bytes),
            megabytes(row.stats_bytes),
        ]
        for row in rows
    ]  # fmt: skip
    layout = "{:28} {:26} {:>7} {:>6} {:>6} {:>11} {:>11}"
    return "\n".join(layout.format(*line).rstrip() for line in [head, *cells])


def megabytes(nbytes: float | None) -> str:
    return "" if nbytes is None else f"{nbytes / 1e6:.2f}"


def shortfalls(rows: Sequence[Row]) -> list[str]:
    """A sentence for every link whose rate this machine does not reach."""
    slow = {}
    for row in rows:
        rate = RATES[row.rate]
        if rate is not None and row.reached_bps < REACHED * rate:
            slow[row.link] = row.reached_bps
    return [
        f"{link}: plain TCP between all workers at once reaches {bps / 1e9:.2g} Gbit/s; "
        "the processors are too slow or too busy to fill the link."
        for link, bps in slow.items()
    ]
