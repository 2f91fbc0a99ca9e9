"""Step times on real shaped links: one network namespace a worker, joined by a bridge.

    sudo .venv/bin/python benchmarks/links.py --rate 100mbit --workers 2 -c none -c qsgd:bits=4

Every worker's interface is shaped by `tc tbf` and carries gloo's TCP traffic. Compute alone, plain
DDP, PyTorch's fp16 hook, PowerSGD (rank 4, one bucket: with more it deadlocks gloo) and each codec
are timed in the same run, so that their ratios mean something on a noisy machine. Bytes come from
the interface's own counter, beside those that `handle.stats()` claims. The limit is the larger of
compute and payload over the rate of the link; the percentage says how much of a step it is.

`--rate loopback` shapes nothing and needs neither root nor iproute2; there interfaces are not
counted. `gradiveq` is measured in its compress phase, at a ratio of 8.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from netns import ADDRESS, IFACE, namespaces, require_root

RATES = {"100mbit": 100e6, "1gbit": 1e9, "10gbit": 1e10, "loopback": None}
BASELINES = ["compute alone", "plain DDP", "fp16 hook"]
CODECS = ["none", "qsgd:bits=4", "dqsg:bits_per_value=2.0", "global-qsgd:bits=4", "fft", "gradiveq"]
WORKER = Path(__file__).with_name("link_worker.py")
PORT = 29777


def main() -> None:
    options = parse_arguments()
    if options.rate != ["loopback"]:
        require_root()
    results = []
    for rate in options.rate:
        for workers in options.workers:
            for model in options.model:
                results += run(options, rate, workers, model)
    print_table(results)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    if options.plot:
        plot(results, options.plot)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", action="append", choices=list(RATES),
                        help="repeatable (default: 100mbit, 1gbit, 10gbit)")  # fmt: skip
    parser.add_argument("--workers", action="append", type=int, help="default: 2 and 4")
    parser.add_argument("--model", action="append", choices=["mlp", "cnn"],
                        help="25.6 M parameters, or the lab's CNN (default: mlp)")  # fmt: skip
    parser.add_argument("-c", "--codec", action="append", help=f"default: {' '.join(CODECS)}")
    parser.add_argument("--no-powersgd", action="store_true", help="leave PowerSGD out")
    parser.add_argument("--steps", type=int, default=10, help="most timed steps (default: 10)")
    parser.add_argument("--seconds", type=float, default=6.0,
                        help="stop after so many, but not before 3 steps (default: 6)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=1, help="measure all again (default: 1)")
    parser.add_argument("--quick", action="store_true", help="1gbit, 2 workers, under a minute")
    parser.add_argument("--json", metavar="FILE", help="write the results")
    parser.add_argument("--plot", metavar="FILE", help="draw them, as .svg or .png")
    options = parser.parse_args()
    options.model = options.model or ["mlp"]
    quick = options.quick
    options.rate = options.rate or (["1gbit"] if quick else ["100mbit", "1gbit", "10gbit"])
    options.workers = options.workers or ([2] if quick else [2, 4])
    options.codec = options.codec or (["none", "qsgd:bits=4"] if quick else CODECS)
    options.no_powersgd |= quick
    return options


def run(options: argparse.Namespace, rate: str, workers: int, model: str) -> list[dict]:
    """All variants on one link, with ratios and limits."""
    codecs = [c for c in options.codec if model == "mlp" or not c.startswith("gradiveq")]
    variants = BASELINES + ([] if options.no_powersgd else ["powersgd"]) + codecs
    common = [sys.executable, str(WORKER), "--world", str(workers), "--model", model]
    for name in ("steps", "seconds", "rounds"):
        common += [f"--{name}", str(getattr(options, name))]
    with contextlib.ExitStack() as stack:
        iface, master, prefixes = "lo", "127.0.0.1", [[]] * workers
        if rate != "loopback":
            names = stack.enter_context(namespaces(workers, rate))
            iface, master = IFACE, f"{ADDRESS}1"
            prefixes = [["ip", "netns", "exec", name] for name in names]
        common += ["--iface", iface, "--master", f"{master}:{PORT}"]
        commands = [
            [*prefix, *common, "--rank", str(rank), *variants]
            for rank, prefix in enumerate(prefixes)
        ]
        rows = collect(commands, iface, f"{rate}, {workers} workers, {model}")
    found = [summary(what, [row for row in rows if row["what"] == what]) for what in variants]
    about = {"rate": rate, "workers": workers, "model": model}
    return [about | row for row in compare(found, RATES[rate])]


def collect(commands: list[list[str]], iface: str, title: str) -> list[dict]:
    """Run the workers; rank 0 prints a JSON object for each variant and round."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": iface, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True,
            env=environment,
        )
        for rank, command in enumerate(commands)
    ]  # fmt: skip
    rows = []
    try:
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            rows.append(json.loads(line))
            seconds = statistics.median(rows[-1]["seconds"])
            print(f"{title}: {rows[-1]['what']} {seconds:.3f} s", file=sys.stderr)
        if any(process.wait() for process in processes):
            sys.exit("a worker failed; see its error above.")
    finally:
        for process in processes:
            process.kill()
    return rows


def summary(what: str, rounds: list[dict]) -> dict:
    """The median step over all rounds."""
    seconds = [second for row in rounds for second in row["seconds"]]
    return rounds[-1] | {"what": what, "seconds": seconds, "step_s": statistics.median(seconds)}


def compare(results: list[dict], rate: float | None) -> list[dict]:
    """Ratios to plain DDP, and how near each comes to what compute and link allow."""
    step_s = {row["what"]: row["step_s"] for row in results}
    for row in results:
        row["ratio"] = row["step_s"] / step_s["plain DDP"]
        row["limit_s"] = step_s["compute alone"]
        if rate is None:
            del row["wire_bytes"]  # on loopback the counter is that of all workers
        else:
            payload = row.get("stats_bytes", row["wire_bytes"])
            row["limit_s"] = max(row["limit_s"], payload * 8 / rate)
    return results


def print_table(results: list[dict]) -> None:
    print(f"{'link':8} {'n':>2} {'model':5} {'what':26} {'s/step':>7} {'ratio':>6} {'limit':>6} "
          f"{'MB on wire':>11} {'MB in stats':>11}")  # fmt: skip
    for row in results:
        print(
            f"{row['rate']:8} {row['workers']:2} {row['model']:5} {row['what']:26} "
            f"{row['step_s']:7.3f} {row['ratio']:6.3f} {row['limit_s'] / row['step_s']:6.0%} "
            f"{megabytes(row.get('wire_bytes'))} {megabytes(row.get('stats_bytes'))}"
        )


def megabytes(nbytes: float | None) -> str:
    return " " * 11 if nbytes is None else f"{nbytes / 1e6:11.2f}"


def plot(results: list[dict], path: str) -> None:
    """A panel for each link: seconds of a step, and the limit as a mark."""
    from matplotlib.figure import Figure

    links = list(dict.fromkeys((r["rate"], r["workers"], r["model"]) for r in results))
    figure = Figure(figsize=(5.2 * min(2, len(links)), 2.9 * -(-len(links) // 2)),
                    layout="constrained")  # fmt: skip
    axes = figure.subplots(-(-len(links) // 2), min(2, len(links)), squeeze=False).flatten()
    for panel, link in zip(axes, links, strict=False):
        rows = [r for r in results if (r["rate"], r["workers"], r["model"]) == link][::-1]
        names = [row["what"] for row in rows]
        colors = ["#4269d0" if "stats_bytes" in row else "#b0b0b0" for row in rows]
        panel.barh(names, [row["step_s"] for row in rows], color=colors)
        panel.plot([row["limit_s"] for row in rows], names, "k|", markersize=10)
        panel.set_title(f"{link[0]}, {link[1]} workers" + (", CNN" if link[2] == "cnn" else ""))
        panel.set_xlabel("seconds a step; | the limit")
    for panel in axes[len(links) :]:
        panel.remove()
    figure.savefig(path)


if __name__ == "__main__":
    main()
