"""What `plan_check.py` predicted beside what it measured, and whether that is good enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from link_results import Link
from page_marks import Marks

MEDIAN, MOST, RIGHT = 0.07, 0.15, 0.95
"""The most that the median and the 90th percentile of errors may be, and the least share of rows
whose "pays, or does not" is right, of those that differ from plain DDP by more than `CLEAR`."""
CLEAR = 0.10
MARKS = Marks("plan_check.py")


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


def summary(found: Sequence[Checked]) -> tuple[str, bool]:
    """How right it is, in two sentences; is that enough?"""
    errors = [abs(row.error) for row in found]
    theirs = [abs(row.paper_error) for row in found if row.paper_error is not None]
    clear = [row for row in found if row.pays is not None]
    right = sum(row.pays == row.said for row in clear) / len(clear) if clear else 1.0
    median, most = statistics.median(errors), percentile(errors, 0.9)
    said = (
        f"{len(found)} rows: median error {median:.1%} (at most {MEDIAN:.0%}), 90th percentile "
        f"{most:.1%} (at most {MOST:.0%}); pays or not is right in {right:.0%} of {len(clear)} "
        f"clear rows (at least {RIGHT:.0%}).\nThe paper's model: median error "
        f"{statistics.median(theirs):.0%}, 90th percentile {percentile(theirs, 0.9):.0%}."
    )
    return said, median <= MEDIAN and most <= MOST and right >= RIGHT


def verdict(found: Sequence[Checked]) -> int:
    """Say how right it is; 1 if that is not enough."""
    said, enough = summary(found)
    print(said)
    return int(not enough)


def markdown(found: Sequence[Checked]) -> str:
    """A table for each model and number of workers: a line a variant, and a column a link."""
    kinds = dict.fromkeys((row.link.model, row.link.workers) for row in found)
    tables = [
        _table([row for row in found if (row.link.model, row.link.workers) == kind])
        for kind in kinds
    ]
    return "\n\n".join([*tables, summary(found)[0]])


def _table(found: Sequence[Checked]) -> str:
    """Measured and predicted seconds, and the error."""
    links = list(dict.fromkeys(row.link for row in found))
    lines = [
        f"| measured, predicted | {' | '.join(map(str, links))} |",
        f"|---|{'---|' * len(links)}",
    ]
    for what in dict.fromkeys(row.what for row in found):
        cells = {
            row.link: f"{row.measured:.3f}, {row.predicted:.3f} ({row.error:+.0%})"
            for row in found
            if row.what == what
        }
        lines.append(f"| {what} | {' | '.join(cells.get(link, '') for link in links)} |")
    return "\n".join(lines)
