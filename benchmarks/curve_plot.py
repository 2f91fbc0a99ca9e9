"""Line plots as SVG that read on light and on dark pages, for the docs of the algorithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gradwire.lab.report.axes import Axis, axis

LEFT, TOP, WIDTH, HEIGHT, RIGHT, BOTTOM = 64, 36, 420, 260, 230, 48
STYLE = """
svg { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
.page { fill: #ffffff; } .text { fill: #24292f; } .faint { fill: #6e7781; }
.title { font-weight: 600; font-size: 13px; }
.end { text-anchor: end; } .mid { text-anchor: middle; }
.grid { stroke: #d0d7de; } .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.c0 { stroke: #3b6fd4; } .c1 { stroke: #cf222e; }
.c2 { stroke: #8c959f; } .c3 { stroke: #bf8700; }
.bar { fill: #3b6fd4; }
@media (prefers-color-scheme: dark) {
  .page { fill: #1e2129; } .text { fill: #e6e8ee; } .faint { fill: #9aa1b0; }
  .grid { stroke: #4a5060; } .bar { fill: #6c9bf5; }
  .c0 { stroke: #6c9bf5; } .c1 { stroke: #ff8a80; }
  .c2 { stroke: #7d8597; } .c3 { stroke: #e3b341; }
}
"""


@dataclass(frozen=True)
class Curve:
    """Points with a name; `colour` is one of four."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]


def draw(
    title: str, x_title: str, y_title: str, curves: Sequence[Curve], *, is_log: bool = False
) -> str:
    """The SVG text."""
    across = axis(x_title, "", [x for c in curves for x, _ in c.points], from_zero=True)
    down = axis(y_title, "", [y for c in curves for _, y in c.points], is_log=is_log)
    parts = [grid(across, down)]
    for place, curve in enumerate(curves):
        parts.append(line(curve, across, down))
        y = TOP + 18 * place + 8
        parts.append(f'<path class="line c{curve.colour}" d="M{LEFT + WIDTH + 16} {y}h22"/>')
        parts.append(text(LEFT + WIDTH + 44, y + 4, curve.name, "text"))
    parts.append(text(LEFT, 20, title, "text title"))
    parts.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 36, x_title, "faint mid"))
    return page(title, parts)


def page(title: str, parts: Sequence[str]) -> str:
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="page" width="{width}" height="{height}" rx="6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def grid(across: Axis, down: Axis) -> str:
    parts = []
    for tick in across.ticks():
        x = LEFT + WIDTH * across.place(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}v{HEIGHT}"/>')
        parts.append(text(x, TOP + HEIGHT + 16, across.label(tick), "faint mid"))
    for tick in down.ticks():
        y = TOP + HEIGHT * (1 - down.place(tick))
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}h{WIDTH}"/>')
        parts.append(text(LEFT - 6, y + 4, label(tick, down), "faint end"))
    return "\n".join(parts)


def label(tick: float, down: Axis) -> str:
    exponent = round(math.log10(tick)) if tick > 0 else 0
    return f"1e{exponent}" if down.is_log and abs(exponent) > 2 else down.label(tick)


def line(curve: Curve, across: Axis, down: Axis) -> str:
    places = [
        f"{LEFT + WIDTH * across.place(x):.1f} {TOP + HEIGHT * (1 - down.place(y)):.1f}"
        for x, y in curve.points
        if math.isfinite(y) and (y > 0 or not down.is_log)
    ]
    return f'<path class="line c{curve.colour}" d="M{"L".join(places)}"/>'


def text(x: float, y: float, words: str, name: str) -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'
