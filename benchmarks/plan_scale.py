"""The planner carried to a thousand workers: simulation, not measurement.

    .venv/bin/python benchmarks/plan_scale.py --plot docs/planner.svg --json scale.json
    .venv/bin/python benchmarks/plan_check.py --out scale --rate 20mbit --workers 2 --workers 4 \
        --workers 8 --model cnn
    .venv/bin/python benchmarks/plan_scale.py --check scale

Two settings: a data centre (`DATA_CENTRE`), whose codecs are assumed to run on the GPU, and
volunteers (`VOLUNTEERS`) with the CPU speeds of the planner's table, links from 50 to 1,000 Mbit/s,
evenly on a logarithmic scale, and some who compute slower than others. The simulator is
`gradwire.planner.simulator`, which tests hold to closed forms and to the replay of a step.
`--check` holds it to real steps that `plan_check.py` has measured, on links so slow that it does
not matter that all workers share the cores of one machine: of those the simulator knows nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import link_results
from gradwire.planner import profile
from gradwire.planner.layout import FORWARD, chunks
from gradwire.planner.rates import Rates, table, work_of
from gradwire.planner.simulator import Cluster, Simulated, simulate_step

CODECS = ("none", "bf16", "qsgd:bits=4", "dqsg", "global-qsgd:bits=4")
BUCKETS = 8
NODE = 8


@dataclass(frozen=True)
class Place:
    """Where it is; rates are bytes a second, and `gpu_s` seconds a value if codecs are on a GPU."""

    name: str
    params: int
    compute_s: float
    latency: float
    message_s: float
    workers: tuple[int, ...]
    gpu_s: float | None = None

    def cluster(self, workers: int) -> Cluster:
        if self.gpu_s is not None:
            rate = np.full(workers, 50e9 / 8)
            return Cluster(rate, rate, self.latency, message_s=self.message_s)
        draw = np.random.default_rng(0)
        rate = 10 ** draw.uniform(np.log10(50e6), np.log10(1e9), self.workers[-1])[:workers] / 8
        slower = np.exp(np.abs(draw.normal(0.0, 0.3, self.workers[-1])))[:workers]
        return Cluster(rate, rate, self.latency, slower, self.message_s)

    def buckets(self) -> list[tuple[float, float]]:
        shares = [(i + 1) / BUCKETS for i in range(BUCKETS)]
        ready = [self.compute_s * (FORWARD + (1 - FORWARD) * share) for share in shares]
        return [(at, self.params / BUCKETS) for at in ready]

    def rates(self, spec: str) -> Rates:
        found = table()["rates"][spec]
        if self.gpu_s is None or spec == "none":
            return found
        same = dict.fromkeys(("encode", "decode"), self.gpu_s)
        parts = {name: self.gpu_s for name in ("statistics", "add", "feedback")
                 if getattr(found, name)}  # fmt: skip
        return replace(found, **same, **parts)


DATA_CENTRE = Place(
    "1.3 B parameters, 0.3 s compute, GPUs on 50 Gbit/s each", 1_300_000_000, 0.3, 10e-6, 5e-6,
    (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), gpu_s=1e-11,
)  # fmt: skip
VOLUNTEERS = Place(
    "100 M parameters, 5 s compute, volunteers on 50 to 1,000 Mbit/s", 100_000_000, 5.0, 0.03,
    50e-6, (2, 4, 8, 16, 32, 64, 128, 250, 500, 1000),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE.svg", type=Path, help="draw the curves")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the numbers")
    parser.add_argument("--check", metavar="DIR", type=Path, help="compare with real steps")
    options = parser.parse_args()
    if options.check:
        print(compared(options.check))
        return
    rows = [row for place in (DATA_CENTRE, VOLUNTEERS) for row in simulate(place)]
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.plot:
        draw(rows, options.plot)


def simulate(place: Place) -> list[dict]:
    rows = []
    for spec in CODECS:
        for workers in place.workers:
            work = work_of(place.rates(spec), workers, job_s=0.0)
            found = simulate_step(place.cluster(workers), place.buckets(), work)
            rows.append(row(place, spec, workers, found))
    if place.gpu_s is not None:
        rows += [in_nodes(place, spec, workers) for spec in ("none", "qsgd:bits=4")
                 for workers in place.workers if workers > NODE]  # fmt: skip
    return rows


def in_nodes(place: Place, spec: str, workers: int) -> dict:
    """Sums within nodes of eight first, at 300 GB/s, then a shard of each GPU between nodes."""
    nodes = workers // NODE
    inside = 2 * (NODE - 1) / NODE * 4 * place.params / NODE / 300e9
    buckets = [(at + inside / BUCKETS, values / NODE) for at, values in place.buckets()]
    work = work_of(place.rates(spec), nodes, job_s=0.0)
    found = simulate_step(place.cluster(nodes), buckets, work)
    found.step_s += inside / BUCKETS
    return row(place, f"{spec}, nodes of {NODE}", workers, found)


def compared(folder: Path) -> str:
    """Measured and simulated seconds a step for each link in `folder`, and the errors."""
    lines, errors = ["| link | what | measured | simulated | error |", "|---|---|---|---|---|"], []
    for rows_file in sorted(folder.glob("*-rows.json")):
        known = profile.read(rows_file.with_name(rows_file.name.replace("rows", "profile")))
        for real in link_results.read(rows_file):
            if real.what in (link_results.COMPUTE, link_results.HALF):
                continue
            found = on_equal_links(known, real.what).step_s
            errors.append(found / real.step_s - 1)
            cells = (real.link, real.what, f"{real.step_s:.3f}", f"{found:.3f}")
            lines.append(f"| {' | '.join(map(str, cells))} | {errors[-1]:+.0%} |")
    middle = statistics.median(map(abs, errors))
    return "\n".join([*lines, "", f"{len(errors)} rows: median error {middle:.1%}."])


def on_equal_links(known: profile.Profile, what: str) -> Simulated:
    """A step of the workers of a profile, which are alike."""
    there = known.setting()
    work = there.plain() if what == link_results.PLAIN else known.work(what)
    rate = np.full(known.workers, there.network.rate)
    cluster = Cluster(rate, rate, known.link["latency_s"])
    jobs = []
    for ready in there.model.buckets:
        whole = work.collective == "all_reduce" or not ready.coded
        sizes = [ready.sizes] if whole else chunks(ready.coded, 512, known.workers)
        jobs += [(ready.at_s, float(sum(size))) for size in sizes]
    return simulate_step(cluster, jobs, work)


def row(place: Place, spec: str, workers: int, found: Simulated) -> dict:
    return {"place": place.name, "codec": spec, "workers": workers,
            "bottleneck": found.bottleneck, **asdict(found)}  # fmt: skip


def markdown(rows: list[dict]) -> str:
    parts = []
    for name in dict.fromkeys(row["place"] for row in rows):
        here = [row for row in rows if row["place"] == name]
        counts = sorted({row["workers"] for row in here if row["workers"] >= 4})[::2]
        lines = [
            f"| {name} | {' | '.join(f'{c:,}' for c in counts)} |",
            "|---|" + "---|" * len(counts),
        ]
        for spec in dict.fromkeys(row["codec"] for row in here):
            cells = {r["workers"]: f"{r['step_s']:.2f} ({r['bottleneck']})" for r in here
                     if r["codec"] == spec}  # fmt: skip
            lines.append(f"| {spec} | {' | '.join(cells.get(c, '') for c in counts)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def draw(rows: list[dict], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.fonttype"], mpl.rcParams["svg.hashsalt"] = "none", "planner"
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, place in zip(figure.subplots(1, 2), (DATA_CENTRE, VOLUNTEERS), strict=True):
        here = [row for row in rows if row["place"] == place.name]
        for spec in dict.fromkeys(row["codec"] for row in here):
            found = [row for row in here if row["codec"] == spec]
            style = "s--" if "nodes" in spec else "o-"
            axes.plot([row["workers"] for row in found], [row["step_s"] for row in found], style,
                      markersize=3, label=spec)  # fmt: skip
        axes.axhline(place.compute_s, color="grey", linewidth=0.8)
        axes.set(xlabel="workers", ylabel="seconds a step, simulated", xscale="log", yscale="log")
        axes.set_title(place.name, fontsize="small")
        axes.legend(fontsize="x-small")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
