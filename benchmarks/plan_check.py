"""Is the planner right? Every row of `links.py`, predicted from a probe in the same run.

    sudo .venv/bin/python benchmarks/plan_check.py --out plan-check --quick
    sudo .venv/bin/python benchmarks/plan_check.py --out plan-check
    .venv/bin/python benchmarks/plan_check.py --out plan-check --report --page docs/planner.md

On each link the workers first probe it (`gradwire probe`), then the variants are timed. What was
measured is kept in the folder of `--out`, a file for each link, so a run that was cut short goes on
where it stopped; `--anew` measures again, and `--report` only reads. It fails if the predictions
are worse than `plan_verdict.py` allows. PyTorch's PowerSGD and `auto`, which chooses by measuring,
are timed but not predicted: with them the files hold all that `links_report.py` shows.
Beside each prediction stands that of the Global-QSGD paper's own model.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import link_run
import plan_worker
from gradwire.planner import paper, profile
from gradwire.planner.work import raw
from link_results import BASELINES, COMPUTE, HALF, PLAIN, POWERSGD, Link, Row, read, write
from links import CODECS, prepare_links
from plan_verdict import CLEAR, MARKS, Checked, markdown, table, verdict

AUTO = "auto"
UNPREDICTED = (POWERSGD, AUTO)


def main() -> None:
    options = parse_arguments()
    if not options.report:
        measure(options)
    checked = [row for link in links(options) for row in check(options.out, link)]
    if not checked:
        sys.exit(f"There is nothing in {options.out}; run it without --report.")
    print(table(checked))
    if options.page:
        MARKS.put(markdown(checked), options.page)
    print(f"\nload average {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores now\n")
    sys.exit(verdict(checked))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", metavar="DIR", type=Path, required=True, help="where measurements are kept")
    add("--rate", action="append", help="repeatable (default: 100mbit, 1gbit, 10gbit)")
    add("--workers", action="append", type=int, help="repeatable (default: 2 and 4)")
    add("--model", action="append", choices=["mlp", "cnn"], help="repeatable (default: both)")
    add("--steps", type=int, default=100, help="most timed steps (default: 100)")
    add("--seconds", type=float, default=4.0, help="of a variant, but 3 steps (default: 4)")
    add("--probe", type=float, default=20.0, metavar="SECONDS", help="of the probe (default: 20)")
    add("--quick", action="store_true", help="1gbit, 2 workers, mlp: about a minute")
    add("--anew", action="store_true", help="measure again what is there")
    add("--report", action="store_true", help="measure nothing")
    add("--page", metavar="FILE.md", type=Path, help="put the table between the page's marks")
    options = parser.parse_args()
    quick = options.quick
    options.rate = options.rate or (["1gbit"] if quick else ["100mbit", "1gbit", "10gbit"])
    options.workers = options.workers or ([2] if quick else [2, 4])
    options.model = options.model or (["mlp"] if quick else ["mlp", "cnn"])
    if quick:
        options.seconds, options.probe = min(options.seconds, 3.0), min(options.probe, 12.0)
    return options


def links(options: argparse.Namespace) -> list[Link]:
    return [
        Link(rate, workers, model)
        for model in options.model
        for rate in options.rate
        for workers in options.workers
    ]


def variants(link: Link) -> list[str]:
    return [*BASELINES, *(c for c in CODECS if link.model == "mlp" or not c.startswith("gradiveq"))]


def probed(link: Link) -> list[str]:
    """The codecs whose steps are predicted."""
    return ["bf16", *(what for what in variants(link) if what not in (*BASELINES, AUTO))]


def files(out: Path, link: Link) -> tuple[Path, Path]:
    """The profile of a link, and its rows."""
    name = f"{link.rate}-{link.workers}-{link.model}"
    return out / f"{name}-profile.json", out / f"{name}-rows.json"


def measure(options: argparse.Namespace) -> None:
    """What is not there yet."""
    prepare_links([link.rate for link in links(options)])
    options.out.mkdir(parents=True, exist_ok=True)
    missing = [
        link for link in links(options) if options.anew or not files(options.out, link)[1].exists()
    ]
    link_run.WORKER = Path(plan_worker.__file__)
    progress = link_run.Progress(sum(len(variants(link)) for link in missing))
    arguments = ["--steps", str(options.steps), "--seconds", str(options.seconds)]
    for link in missing:
        profile_file, rows_file = files(options.out, link)
        os.environ[plan_worker.FILE] = str(profile_file.resolve())
        os.environ[plan_worker.CODECS] = " ".join(probed(link))
        os.environ[plan_worker.SECONDS] = str(options.probe)
        rows = link_run.measure(link, variants(link), arguments, progress)
        write(rows_file, rows)


def check(out: Path, link: Link) -> list[Checked]:
    """What was predicted and measured on a link; nothing if it was not measured."""
    profile_file, rows_file = files(out, link)
    if not rows_file.exists():
        return []
    found = profile.read(profile_file)
    rows = [row for row in read(rows_file) if row.what not in UNPREDICTED]
    plain = next(row.step_s for row in rows if row.what == PLAIN)
    guesses = {row.what: predicted(found, row.what) for row in rows}
    return [checked(row, guesses, plain) for row in rows]


def checked(row: Row, guesses: dict[str, tuple[float, float | None]], plain: float) -> Checked:
    guess, by_paper = guesses[row.what]
    clear = abs(row.step_s / plain - 1) > CLEAR and row.what != COMPUTE
    return Checked(
        row.link, row.what, row.step_s, guess, by_paper,
        row.step_s < plain if clear else None, guess < guesses[PLAIN][0] if clear else None,
    )  # fmt: skip


def predicted(found: profile.Profile, what: str) -> tuple[float, float | None]:
    """Seconds a step by our model, and by the paper's."""
    there = found.setting()
    if what == COMPUTE:
        return found.model["alone_s"], None
    if what == PLAIN:
        work = there.plain()
    elif what == HALF:
        work = found.half()
    else:
        work = found.work(what)
    by_paper = raw(PLAIN, found.workers) if what == "none" else work
    return there.predict(work).step_s, paper.step_s(there, by_paper)


if __name__ == "__main__":
    main()
