"""Curves of training, from what `gradwire train --json` wrote: an SVG that reads on any page.

    .venv/bin/python benchmarks/curves.py sync.json local.json --plot docs/algorithms/outer.svg

Test loss against steps, against what a worker sent and, with `--seconds`, against time. A dot is
the last evaluation; `--target` draws the loss that is to be reached.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from curve_plot import Panel, draw
from gradwire.lab.records import Training
from gradwire.lab.report.axes import Axis, axis

WORST = 0.15  # the share of scores, those of the first steps, that would press the others together

Scores = Sequence[dict[str, float]]
"""The evaluations of one training."""


@dataclass(frozen=True)
class Against:
    """What lies on the horizontal axis: a field of the evaluations, divided."""

    title: str
    field: str
    unit: float = 1.0
    is_log: bool = False

    def values(self, scores: Scores) -> list[float]:
        return [each[self.field] / self.unit for each in scores]


STEPS = Against("steps", "step")
BYTES = Against("MB that a worker sent", "bytes", 1e6, is_log=True)
SECONDS = Against("seconds of training", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path, help="what `gradwire train` wrote")
    parser.add_argument("--plot", type=Path, required=True, help="the SVG to write")
    parser.add_argument("--seconds", action="store_true", help="time in place of steps")
    parser.add_argument("--name", action="append", default=[], help="of a result; one for each")
    parser.add_argument("--target", type=float, help="a test loss to be reached")
    options = parser.parse_args()
    rows = [row for path in options.results for row in json.loads(path.read_text())]
    names = options.name or [Training(row["codec"], row["algorithm"]).label for row in rows]
    found = [row["scores"] for row in rows]
    down = losses(found, options.target)
    panels = [
        panel(against, found, down, options.target)
        for against in (SECONDS if options.seconds else STEPS, BYTES)
    ]
    keys = [f"{name}: {ending(scores)}" for name, scores in zip(names, found, strict=True)]
    options.plot.write_text(draw("Test loss of each training", panels, keys))


def losses(found: Sequence[Scores], target: float | None) -> Axis:
    """The vertical axis, which leaves the worst out."""
    ordered = sorted(each["loss"] for scores in found for each in scores)
    kept = ordered[: len(ordered) - int(WORST * len(ordered))]
    return axis("test loss", "", kept if target is None else [*kept, target], margin=0.04)


def panel(against: Against, found: Sequence[Scores], down: Axis, target: float | None) -> Panel:
    values = [against.values(scores) for scores in found]
    across = axis(
        against.title, "", [value for each in values for value in each],
        is_log=against.is_log, from_zero=not against.is_log,
    )  # fmt: skip
    curves = [
        [(at, each["loss"]) for at, each in zip(places, scores, strict=True)]
        for places, scores in zip(values, found, strict=True)
    ]
    return Panel(f"test loss against {against.title}", across, down, curves, target)


def ending(scores: Scores) -> str:
    last = scores[-1]
    return f"{last['loss']:.4f} after {last['bytes'] / 1e6:,.1f} MB"


if __name__ == "__main__":
    main()
