"""The plot of `links.py`: an SVG that reads on light and on dark pages.

Bars of seconds a step from zero, a tick where the limit is, and the ratio to plain DDP. Links of
one rate stand side by side, a column for each number of workers, and share their scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from link_results import COMPUTE, Link, Row, links_of

MARGIN, LABEL, BAR, VALUE = 16, 160, 190, 104  # widths
PITCH, THICK, TITLE, GAP = 18, 11, 24, 18  # heights
PANEL = BAR + VALUE
TIMES = "\N{MULTIPLICATION SIGN}"
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
KEY_WIDTH = 680
KEY = [("compute", "compute alone"), ("torch", "PyTorch"), ("gradwire", "gradwire")]


def draw(rows: Sequence[Row]) -> str:
    """The SVG text."""
    columns = sorted({row.workers for row in rows})
    parts, y = [key()], MARGIN + TITLE + GAP
    for _, links in groupby(links_of(rows), key=lambda link: (link.model, link.rate)):
        found = {link: [row for row in rows if row.link == link] for link in links}
        drawn, height = group(found, columns)
        parts.append(f'<g transform="translate({MARGIN} {y})">\n{drawn}\n</g>')
        y += height + GAP
    width = max(KEY_WIDTH, 2 * MARGIN + LABEL + PANEL * len(columns))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" '
        f'width="{width}" height="{y}" role="img" aria-label="Seconds a step on each link">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="page" width="{width}" height="{y}" rx="6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def key() -> str:
    """What colours, ticks and ratios mean."""
    x, parts = MARGIN, []
    for name, title in KEY:
        parts += [rect(x, MARGIN, 11, name), text(x + 17, MARGIN + 10, title, "text")]
        x += 36 + 7 * len(title)
    parts += [tick(x + 2, MARGIN), text(x + 10, MARGIN + 10, "limit of compute and link", "text")]
    x += 182
    return "".join([*parts, text(x, MARGIN + 10, f"0.50{TIMES} ratio to plain DDP", "faint")])


def group(found: dict[Link, list[Row]], columns: Sequence[int]) -> tuple[str, int]:
    """All links of one rate and model, and the height they take."""
    rows = [row for panel in found.values() for row in panel]
    lines = {what: TITLE + i * PITCH for i, what in enumerate(dict.fromkeys(r.what for r in rows))}
    longest = max(max(row.step_s, row.limit_s) for row in rows)
    parts = [text(0, 10, rows[0].link.speed + rows[0].link.suffix, "text title")]
    parts += [text(LABEL - 8, y + 10, what, "text end") for what, y in lines.items()]
    for link, shown in found.items():
        x = LABEL + PANEL * columns.index(link.workers)
        parts.append(text(x, 10, f"{link.workers} workers", "faint"))
        parts.append(f'<path class="axis" d="M{x} {TITLE - 4}v{PITCH * len(lines)}"/>')
        parts += [bar(row, x, lines[row.what], BAR / longest) for row in shown]
    return "\n".join(parts), TITLE + PITCH * len(lines)


def bar(row: Row, x: float, y: float, scale: float) -> str:
    end, limit = x + row.step_s * scale, x + row.limit_s * scale
    ratio = f'<tspan class="faint" dx="6">{row.ratio:.2f}{TIMES}</tspan>'
    return (
        rect(x, y, row.step_s * scale, kind(row))
        + tick(limit, y)
        + f'<text class="text value" x="{max(end, limit) + 6:.1f}" y="{y + 10}">'
        + f"{seconds(row.step_s)}{ratio}</text>"
    )


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


def seconds(step_s: float) -> str:
    if step_s < 1:
        return f"{step_s * 1000:.0f} ms"
    return f"{step_s:.{2 if step_s < 10 else 1}f} s"
