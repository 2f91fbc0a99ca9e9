"""Is the planner right? Every row of `links.py`, predicted from a probe in the same run.

    sudo .venv/bin/python benchmarks/plan_check.py --out plan-check --quick
    sudo .venv/bin/python benchmarks/plan_check.py --out plan-check
    .venv/bin/python benchmarks/plan_check.py --out plan-check --report

On each link the workers first probe it (`gradwire probe`), then the variants are timed. What was
measured is kept in the folder of `--out`, a file for each link, so a run that was cut short goes on
where it stopped; `--anew` measures again, and `--report` only reads. It fails if the predictions
are worse than `MEDIAN`, `MOST` and `RIGHT` say. PowerSGD, which is PyTorch's, is not predicted.
Beside each prediction stands that of the Global-QSGD paper's own model.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import link_run
import plan_worker
from gradwire.planner import paper, profile
from gradwire.planner.work import raw
from link_results import BASELINES, COMPUTE, HALF, PLAIN, POWERSGD, Link, Row, read, write
from links import CODECS, require_root

MEDIAN, MOST, RIGHT = 0.07, 0.15, 0.95
"""The most that the median and the 90th percentile of errors may be, and the least share of rows
whose "pays, or does not" is right, of those that differ from plain DDP by more than `CLEAR`."""
CLEAR = 0.10


@dataclass(frozen=True)
class Checked:
    """One row: seconds a step."""

    link: Link
    what: str
    measured: float
    predicted: float
    paper: float | None
    pays: bool | None  # None: too near to plain DDP to say
    said: bool | None

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def paper_error(self) -> float | None:
        return None if self.paper is None else self.paper / self.measured - 1


def main() -> None:
    options = parse_arguments()
    if not options.report:
        measure(options)
    checked = [row for link in links(options) for row in check(options.out, link)]
    if not checked:
        sys.exit(f"There is nothing in {options.out}; run it without --report.")
    print(table(checked))
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
    add("--steps", type=int, default=10, help="most timed steps (default: 10)")
    add("--seconds", type=float, default=6.0, help="of a variant (default: 6)")
    add("--probe", type=float, default=20.0, metavar="SECONDS", help="of the probe (default: 20)")
    add("--quick", action="store_true", help="1gbit, 2 workers, mlp: about a minute")
    add("--anew", action="store_true", help="measure again what is there")
    add("--report", action="store_true", help="measure nothing")
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
    codecs = [c for c in CODECS if link.model == "mlp" or not c.startswith("gradiveq")]
    return [*(what for what in BASELINES if what != POWERSGD), *codecs]


def files(out: Path, link: Link) -> tuple[Path, Path]:
    """The profile of a link, and its rows."""
    name = f"{link.rate}-{link.workers}-{link.model}"
    return out / f"{name}-profile.json", out / f"{name}-rows.json"


def measure(options: argparse.Namespace) -> None:
    """What is not there yet."""
    require_root()
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
        os.environ[plan_worker.CODECS] = " ".join(["bf16", *variants(link)[3:]])
        os.environ[plan_worker.SECONDS] = str(options.probe)
        rows = link_run.measure(link, variants(link), arguments, progress)
        write(rows_file, rows)


def check(out: Path, link: Link) -> list[Checked]:
    """What was predicted and measured on a link; nothing if it was not measured."""
    profile_file, rows_file = files(out, link)
    if not rows_file.exists():
        return []
    found, rows = profile.read(profile_file), read(rows_file)
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
        return there.model.compute_s, None
    if what == PLAIN:
        work = there.plain()
    elif what == HALF:
        work = found.half()
    else:
        work = found.work(what)
    by_paper = raw(PLAIN, found.workers) if what == "none" else work
    return there.predict(work).step_s, paper.step_s(there, by_paper)


def table(found: Sequence[Checked]) -> str:
    layout = "{:28} {:26} {:>9} {:>9} {:>7} {:>9} {:>9}"
    lines = [layout.format("link", "what", "measured", "predicted", "error", "paper", "its error")]
    for row in found:
        by_paper, error = "", ""
        if row.paper is not None and row.paper_error is not None:
            by_paper, error = f"{row.paper:.3f}", f"{row.paper_error:+.0%}"
        wrong = "" if row.pays == row.said else "  wrong: pays or not"
        lines.append(
            layout.format(
                str(row.link), row.what, f"{row.measured:.3f}", f"{row.predicted:.3f}",
                f"{row.error:+.0%}", by_paper, error,
            ) + wrong
        )  # fmt: skip
    return "\n".join(lines)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` of them do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, max(0, math.ceil(share * len(ranked)) - 1))]


def verdict(found: Sequence[Checked]) -> int:
    """Say how right it is; 1 if that is not enough."""
    errors = [abs(row.error) for row in found]
    theirs = [abs(row.paper_error) for row in found if row.paper_error is not None]
    clear = [row for row in found if row.pays is not None]
    right = sum(row.pays == row.said for row in clear) / len(clear) if clear else 1.0
    median, most = statistics.median(errors), percentile(errors, 0.9)
    print(
        f"{len(found)} rows: median error {median:.1%} (at most {MEDIAN:.0%}), 90th percentile "
        f"{most:.1%} (at most {MOST:.0%}); pays or not is right in {right:.0%} of {len(clear)} "
        f"clear rows (at least {RIGHT:.0%})."
    )
    print(
        f"The paper's model: median error {statistics.median(theirs):.0%}, 90th percentile "
        f"{percentile(theirs, 0.9):.0%}."
    )
    return int(median > MEDIAN or most > MOST or right < RIGHT)


if __name__ == "__main__":
    main()
