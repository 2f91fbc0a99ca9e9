"""Line plots as SVG that read on light and on dark pages, for the docs of the algorithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gradwire.lab.report.axes import Axis

WIDTH, HEIGHT, LEFT, GAP, TOP, FOOT = 330, 230, 48, 66, 30, 44
LINE = 18
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

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Curves over one pair of axes; `goal` is a value that they are to reach."""

    title: str
    across: Axis
    down: Axis
    curves: Sequence[Points]
    goal: float | None = None


def draw(title: str, panels: Sequence[Panel], names: Sequence[str]) -> str:
    """The SVG text; `names` are those of the curves, in every panel the same ones."""
    width = LEFT + len(panels) * WIDTH + (len(panels) - 1) * GAP + 20
    height = TOP + HEIGHT + FOOT + LINE * len(names) + 12
    parts = [
        f'<g transform="translate({LEFT + i * (WIDTH + GAP)} {TOP})">{_panel(panel)}</g>'
        for i, panel in enumerate(panels)
    ]
    parts += [_key(i, name) for i, name in enumerate(names)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" rx="6" style="fill: var(--page)"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _panel(panel: Panel) -> str:
    parts = [f'<text class="title" x="0" y="-12">{escape(panel.title)}</text>']
    for tick in panel.down.ticks():
        y, words = HEIGHT * (1 - panel.down.place(tick)), _label(tick, panel.down)
        parts.append(f'<path class="grid" d="M0 {y:.1f}H{WIDTH}"/>')
        parts.append(f'<text class="faint end" x="-6" y="{y + 4:.1f}">{words}</text>')
    for tick in panel.across.ticks():
        x, words = WIDTH * panel.across.place(tick), panel.across.label(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} 0V{HEIGHT}"/>')
        parts.append(f'<text class="faint middle" x="{x:.1f}" y="{HEIGHT + 16}">{words}</text>')
    if panel.goal is not None:
        y = HEIGHT * (1 - panel.down.place(panel.goal))
        parts.append(f'<path class="goal" d="M0 {y:.1f}H{WIDTH}"/>')
    return "".join([*parts, *(_line(panel, i, each) for i, each in enumerate(panel.curves))])


def _label(tick: float, axis: Axis) -> str:
    exponent = round(math.log10(tick)) if tick > 0 else 0
    return f"1e{exponent}" if axis.is_log and abs(exponent) > 2 else axis.label(tick)


def _line(panel: Panel, number: int, points: Points) -> str:
    """The part of a curve that is not above the panel, and a dot at its end."""
    places = [
        (WIDTH * panel.across.place(x), HEIGHT * (1 - panel.down.place(y)))
        for x, y in points
        if math.isfinite(y) and (y > 0 or not panel.down.is_log)
    ]
    inside = [(x, y) for x, y in places if y >= 0]
    hue, path = _hue(number), " ".join(f"{x:.1f},{y:.1f}" for x, y in inside)
    end = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill: {hue}"/>' for x, y in inside[-1:]
    )
    return f'<polyline points="{path}" style="stroke: {hue}"/>{end}'


def _key(number: int, name: str) -> str:
    y = TOP + HEIGHT + FOOT + number * LINE
    return (
        f'<path d="M{LEFT} {y - 4}h22" style="stroke: {_hue(number)}; stroke-width: 3"/>'
        f'<text x="{LEFT + 30}" y="{y}">{escape(name)}</text>'
    )


def _hue(number: int) -> str:
    return f"var(--{HUES[number % len(HUES)]})"
