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
from html import escape
from pathlib import Path

from gradwire.lab.records import Training
from gradwire.lab.report.axes import Axis, axis

WIDTH, HEIGHT, LEFT, GAP, TOP, FOOT = 330, 230, 48, 66, 30, 44
LINE = 18
WORST = 0.15  # the share of scores, those of the first steps, that would press the others together
HUES = ("text", "hue-0", "hue-1", "hue-2", "hue-3", "hue-4", "hue-5")
STYLE = """
svg { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; --page: #ffffff;
  --text: #24292f; --faint: #6e7781; --grid: #d0d7de; --hue-0: #0072b2; --hue-1: #d55e00;
  --hue-2: #009e73; --hue-3: #cc79a7; --hue-4: #56b4e9; --hue-5: #b8860b; }
@media (prefers-color-scheme: dark) { svg { --page: #1e2129; --text: #e6e8ee; --faint: #9aa1b0;
  --grid: #4a5060; --hue-0: #4aa8e8; --hue-1: #ff8a4c; --hue-2: #3ecf9a; } }
text { fill: var(--text); } .faint { fill: var(--faint); } .end { text-anchor: end; }
.middle { text-anchor: middle; } .title { font-weight: 600; font-size: 13px; }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round; } .grid { stroke: var(--grid); }
.goal { stroke: var(--faint); stroke-dasharray: 5 4; }
"""


@dataclass(frozen=True)
class Curve:
    """One training: its name, its colour, and its evaluations."""

    name: str
    hue: str
    scores: Sequence[dict[str, float]]


@dataclass(frozen=True)
class Panel:
    """What lies on the horizontal axis: a field of the evaluations, divided."""

    title: str
    field: str
    unit: float = 1.0
    is_log: bool = False

    def values(self, curve: Curve) -> list[float]:
        return [each[self.field] / self.unit for each in curve.scores]


STEPS = Panel("steps", "step")
BYTES = Panel("MB that a worker sent", "bytes", 1e6, is_log=True)
SECONDS = Panel("seconds of training", "seconds")


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
    panels = [SECONDS if options.seconds else STEPS, BYTES]
    options.plot.write_text(draw(curves(rows, names), panels, options.target))


def curves(rows: Sequence[dict], names: Sequence[str]) -> list[Curve]:
    """One for each result."""
    return [
        Curve(name, HUES[i % len(HUES)], row["scores"])
        for i, (name, row) in enumerate(zip(names, rows, strict=True))
    ]


def draw(found: Sequence[Curve], panels: Sequence[Panel], target: float | None) -> str:
    """The SVG text."""
    losses = sorted(each["loss"] for curve in found for each in curve.scores)
    kept = losses[: len(losses) - int(WORST * len(losses))]
    y = axis("test loss", "", kept if target is None else [*kept, target], margin=0.04)
    key = LINE * len(found) + 12
    width = LEFT + len(panels) * WIDTH + (len(panels) - 1) * GAP + 20
    height = TOP + HEIGHT + FOOT + key
    parts = [
        f'<g transform="translate({LEFT + i * (WIDTH + GAP)} {TOP})">'
        + _panel(panel, found, y, target)
        + "</g>"
        for i, panel in enumerate(panels)
    ]
    parts += [_key(curve, TOP + HEIGHT + FOOT + i * LINE) for i, curve in enumerate(found)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="Test loss of each training">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" rx="6" style="fill: var(--page)"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(panel: Panel, found: Sequence[Curve], y: Axis, target: float | None) -> str:
    values = [value for curve in found for value in panel.values(curve)]
    x = axis(panel.title, "", values, is_log=panel.is_log, from_zero=not panel.is_log)
    parts = [f'<text class="title" x="0" y="-12">test loss against {panel.title}</text>']
    for tick in y.ticks():
        at = HEIGHT * (1 - y.place(tick))
        parts.append(f'<path class="grid" d="M0 {at:.1f}H{WIDTH}"/>')
        parts.append(f'<text class="faint end" x="-6" y="{at + 4:.1f}">{y.label(tick)}</text>')
    for tick in x.ticks():
        at = WIDTH * x.place(tick)
        parts.append(f'<path class="grid" d="M{at:.1f} 0V{HEIGHT}"/>')
        words = f'<text class="faint middle" x="{at:.1f}" y="{HEIGHT + 16}">{x.label(tick)}</text>'
        parts.append(words)
    if target is not None:
        parts.append(f'<path class="goal" d="M0 {HEIGHT * (1 - y.place(target)):.1f}H{WIDTH}"/>')
    return "".join([*parts, *(_line(panel, curve, x, y) for curve in found)])


def _line(panel: Panel, curve: Curve, x: Axis, y: Axis) -> str:
    """The part of a curve that is not above the panel, and a dot at its end."""
    pairs = zip(panel.values(curve), curve.scores, strict=True)
    points = [(WIDTH * x.place(at), HEIGHT * (1 - y.place(each["loss"]))) for at, each in pairs]
    inside = [(at, down) for at, down in points if down >= 0]
    path = " ".join(f"{at:.1f},{down:.1f}" for at, down in inside)
    end = "".join(
        f'<circle cx="{at:.1f}" cy="{down:.1f}" r="3.5" style="fill: var(--{curve.hue})"/>'
        for at, down in inside[-1:]
    )
    return f'<polyline points="{path}" style="stroke: var(--{curve.hue})"/>{end}'


def _key(curve: Curve, y: float) -> str:
    last = curve.scores[-1]
    words = f"{curve.name}: {last['loss']:.4f} after {last['bytes'] / 1e6:,.1f} MB"
    return (
        f'<path d="M{LEFT} {y - 4}h22" style="stroke: var(--{curve.hue}); stroke-width: 3"/>'
        f'<text x="{LEFT + 30}" y="{y}">{escape(words)}</text>'
    )


if __name__ == "__main__":
    main()
