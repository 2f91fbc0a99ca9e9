"""Step times on real shaped links: one network namespace a worker, joined by a bridge.

    .venv/bin/python benchmarks/links.py --quick
    .venv/bin/python benchmarks/links.py --rate 100mbit --workers 2 -c none -c qsgd:bits=4
    .venv/bin/python benchmarks/links.py --rate 10gbit --json links.json --add

Every worker's interface is shaped by `tc tbf` and carries gloo's TCP traffic. Compute alone, plain
DDP, PyTorch's fp16 hook, PowerSGD (rank 4, one bucket: with more it deadlocks gloo) and each codec
are timed in the same run, so that their ratios mean something on a noisy machine. Bytes come from
the interface's own counter, beside those that `handle.stats()` claims. The limit is the larger of
compute and payload over the rate of the link; the percentage says how much of a step it is.

`--rate loopback` shapes nothing and needs no iproute2; there interfaces are not counted. `gradiveq`
is measured in its compress phase, at a ratio of 8, and not on the CNN.
The file of `--json` grows with every link; `links_report.py` makes plot and tables from it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import link_results as results
from gradwire.lab.links.access import prepare
from gradwire.lab.links.shape import Shape
from link_results import BASELINES, POWERSGD, RATES, Link, Row
from link_run import Progress, measure
from links_plot import draw

CODECS = [
    "none", "qsgd:bits=4", "eden", "dqsg:bits_per_value=2.0", "global-qsgd:bits=4", "thc", "fft",
    "gradiveq", "powersgd:rank=4", "auto",
]  # fmt: skip


def main() -> None:
    options = parse_arguments()
    prepare_links(options.rate)
    links = [
        Link(rate, workers, model)
        for model in options.model
        for rate in options.rate
        for workers in options.workers
    ]
    plans = [plan(options, link) for link in links]
    progress = Progress(sum(map(len, plans)))
    arguments = ["--steps", str(options.steps), "--seconds", str(options.seconds)]
    kept = results.read(options.json) if options.add and options.json.exists() else []
    rows: list[Row] = []
    for link, variants in zip(links, plans, strict=True):
        rows += measure(link, variants, arguments, progress)
        if options.json:
            results.write(options.json, results.merged(kept, rows))
    print("\n".join([results.table(rows), *results.shortfalls(rows)]))
    if options.plot:
        options.plot.write_text(draw(results.merged(kept, rows)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rate", action="append", choices=list(RATES),
        help="repeatable (default: 100mbit, 1gbit, 10gbit)")  # fmt: skip
    add("--workers", action="append", type=int, help="repeatable (default: 2 and 4)")
    add("--model", action="append", choices=["mlp", "cnn"],
        help="25.6 M parameters, or the lab's CNN of 1.6 M (default: both)")  # fmt: skip
    add(
        "-c",
        "--codec",
        action="append",
        type=codec,
        help=f"repeatable (default: {' '.join(CODECS)})",
    )
    add("--no-powersgd", action="store_true", help="leave PowerSGD out")
    add("--steps", type=int, default=10, help="most timed steps (default: 10)")
    add("--seconds", type=float, help="stop after so many, but not before 3 steps (default: 6)")
    add("--rounds", type=int, default=1, help="measure all again (default: 1)")
    add("--quick", action="store_true",
        help="1gbit, 2 workers, mlp, none and qsgd:bits=4: under a minute")  # fmt: skip
    add("--json", metavar="FILE", type=Path, help="write the results, after every link")
    add("--add", action="store_true", help="keep the other links that are in the file already")
    add("--plot", metavar="FILE.svg", type=Path, help="draw the results")
    options = parser.parse_args()
    quick = options.quick
    options.rate = options.rate or (["1gbit"] if quick else ["100mbit", "1gbit", "10gbit"])
    options.workers = options.workers or ([2] if quick else [2, 4])
    options.model = options.model or (["mlp"] if quick else ["mlp", "cnn"])
    options.codec = options.codec or (["none", "qsgd:bits=4"] if quick else CODECS)
    options.seconds = options.seconds or (2.0 if quick else 6.0)
    options.no_powersgd |= quick
    check(parser, options)
    return options


def prepare_links(rates: list[str]) -> None:
    """Find out before anything starts whether there can be links."""
    try:
        for rate in set(rates) - {"loopback"}:
            prepare(Shape.parse(rate))
    except ValueError as error:
        sys.exit(f"Error: {error}")


def codec(spec: str) -> str:
    """What is typed is checked here and not by every worker."""
    from gradwire.codecs import as_codec  # only then: it takes seconds
    from gradwire.planner.auto.settings import as_auto

    try:
        as_auto(spec) or as_codec(spec)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return spec


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if min(options.workers) < 2:
        parser.error("a link needs at least 2 --workers.")
    if options.add and not options.json:
        parser.error("--add needs the --json file that it adds to.")
    if options.plot and options.plot.suffix != ".svg":
        parser.error(f"--plot writes SVG; name it .svg and not {options.plot.suffix!r}.")


def plan(options: argparse.Namespace, link: Link) -> list[str]:
    """What is measured on a link, in order."""
    codecs = [c for c in options.codec if link.model == "mlp" or not c.startswith("gradiveq")]
    baselines = [what for what in BASELINES if what != POWERSGD or not options.no_powersgd]
    return [*baselines, *codecs] * options.rounds


if __name__ == "__main__":
    main()
