"""The plot of `links.py`: an SVG that reads on light and on dark pages.

A panel for each link, bars of seconds a step from zero, and a tick where the limit is. Panels beside
each other differ in the number of workers and share their scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from link_results import COMPUTE, Link, Row, links_of

LABEL, BAR, VALUE, GAP = 172, 150, 92, 16  # widths of the parts of a panel, and between panels
PITCH, THICK, TITLE, MARGIN = 19, 11, 34, 16
PANEL = LABEL + BAR + VALUE
STYLE = """
svg { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
.page { fill: #ffffff; } .text { fill: #24292f; } .faint { fill: #6e7781; }
.title { font-weight: 600; font-size: 13px; } .end { text-anchor: end; }
.value { font-variant-numeric: tabular-nums; }
.compute { fill: #d0d7de; } .torch { fill: #8c959f; } .gradwire { fill: #3b6fd4; }
.limit { stroke: #cf222e; stroke-width: 2; } .axis { stroke: #d0d7de; }
@media (prefers-color-scheme: dark) {
  .page { fill: #1e2129; } .text { fill: #e6e8ee; } .faint { fill: #9aa1b0; }
  .compute { fill: #4a5060; } .torch { fill: #7d8597; } .gradwire { fill: #6c9bf5; }
  .limit { stroke: #ff8a80; } .axis { stroke: #4a5060; }
}
"""
KEY = [
    ("compute", "compute alone"), ("torch", "PyTorch"), ("gradwire", "gradwire"),
    ("limit", "limit of compute and link"),
]  # fmt: skip


def draw(rows: Sequence[Row]) -> str:
    """The SVG text."""
    parts, y = [key()], MARGIN + TITLE
    widest = 0
    for _, links in groupby(links_of(rows), key=lambda link: (link.model, link.rate)):
        panels = {link: [row for row in rows if row.link == link] for link in links}
        longest = max(max(row.step_s, row.limit_s) for row in rows if row.link in panels)
        for i, (link, shown) in enumerate(panels.items()):
            x = MARGIN + i * (PANEL + GAP)
            parts.append(f'<g transform="translate({x} {y})">{panel(link, shown, longest)}</g>')
        widest = max(widest, len(panels))
        y += TITLE + PITCH * max(map(len, panels.values())) + GAP
    width, height = 2 * MARGIN + widest * (PANEL + GAP) - GAP, y
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="Seconds a step on each link">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="page" width="{width}" height="{height}" rx="6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def key() -> str:
    """What the colours mean."""
    x, parts = MARGIN, []
    for name, title in KEY:
        mark = rect(x, MARGIN, 11, name) if name != "limit" else tick(x + 5, MARGIN)
        parts.append(mark + text(x + 17, MARGIN + 10, title, "text"))
        x += 34 + 7 * len(title)
    return "".join(parts)


def panel(link: Link, rows: Sequence[Row], longest: float) -> str:
    parts = [
        text(0, 16, str(link), "text title"),
        f'<path class="axis" d="M{LABEL} {TITLE - 8}v{PITCH * len(rows)}"/>',
    ]
    for i, row in enumerate(rows):
        y = TITLE - 4 + i * PITCH
        length, limit = BAR * row.step_s / longest, BAR * row.limit_s / longest
        parts += [
            text(LABEL - 7, y + 10, label(row), "text end"),
            rect(LABEL, y, length, kind(row)),
            tick(LABEL + limit, y),
            value(LABEL + max(length, limit) + 6, y + 10, row),
        ]
    return "".join(parts)


def label(row: Row) -> str:
    return "PowerSGD" if row.what == "powersgd" else row.what


def kind(row: Row) -> str:
    if row.what == COMPUTE:
        return "compute"
    return "torch" if row.stats_bytes is None else "gradwire"


def rect(x: float, y: float, width: float, name: str) -> str:
    width = max(width, 1)
    return f'<rect class="{name}" x="{x}" y="{y}" width="{width:.1f}" height="{THICK}" rx="1.5"/>'


def tick(x: float, y: float) -> str:
    return f'<path class="limit" d="M{x:.1f} {y - 2}v{THICK + 4}"/>'


def text(x: float, y: float, words: str, name: str) -> str:
    return f'<text class="{name}" x="{x}" y="{y}">{escape(words)}</text>'


def value(x: float, y: float, row: Row) -> str:
    ratio = f'<tspan class="faint" dx="6">{row.ratio:.2f}×</tspan>'  # noqa: RUF001
    return f'<text class="text value" x="{x:.1f}" y="{y}">{seconds(row.step_s)}{ratio}</text>'


def seconds(step_s: float) -> str:
    """Three figures."""
    return (
        f"{step_s:.1f} s"
        if step_s >= 10
        else f"{step_s:.2f} s"
        if step_s >= 1
        else f"{step_s * 1000:.0f} ms"
    )
