"""Tables and plot of what `links.py` or `plan_check.py` measured, from their files alone.

    .venv/bin/python benchmarks/links_report.py links.json                       # Markdown
    .venv/bin/python benchmarks/links_report.py links.json --plot links.svg
    .venv/bin/python benchmarks/links_report.py plan-check/*-rows.json --page docs/performance.md

`--page` replaces what stands between the page's two marks, and draws `links.svg` beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from link_results import BASELINES, COMPUTE, Link, Row, links_of, megabytes, read, shortfalls
from links_plot import draw
from page_marks import Marks

MARKS = Marks("links_report.py")
PLOT = "links.svg"
MODELS = {"mlp": "The perceptron", "cnn": "The CNN"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+", help="files with rows of links")
    parser.add_argument("--plot", metavar="FILE.svg", type=Path, help="draw them")
    parser.add_argument("--page", metavar="FILE.md", type=Path, help="put them into this page")
    options = parser.parse_args()
    rows = [row for file in options.results for row in read(file)]
    if options.plot:
        options.plot.write_text(draw(rows))
    if options.page:
        MARKS.put(markdown(rows), options.page)
        options.page.with_name(PLOT).write_text(draw(rows))
    if not options.plot and not options.page:
        print(markdown(rows))


def markdown(rows: Sequence[Row]) -> str:
    parts = [f"![Seconds a step on each link]({PLOT})"]
    for model, name in MODELS.items():
        if found := [row for row in rows if row.model == model]:
            parts += [
                f"{name}: seconds a step, and in brackets the ratio to plain DDP in the same run:",
                matrix(found, "link, workers", link_title, seconds),
                f"{name}: how much of a step is its limit:",
                matrix(found, "link, workers", link_title, share),
            ]
    return "\n\n".join([*parts, *interface(rows), *shortfalls(rows)])


def link_title(link: Link) -> str:
    return f"{link.speed}, {link.workers}"


def seconds(row: Row) -> str:
    ratio = f"{row.ratio:.{2 if row.ratio >= 1 else 3}f}"
    return f"{row.step_s:.{2 if row.step_s >= 0.1 else 3}f} ({ratio})"


def share(row: Row) -> str:
    return f"{row.limit_s / row.step_s:.0%}"


def interface(rows: Sequence[Row]) -> list[str]:
    """Bytes at the interface beside those of `handle.stats()`; the rate changes neither."""
    sent = [row for row in rows if row.wire_bytes and row.what != COMPUTE]
    both = [row.wire_bytes / row.stats_bytes for row in sent if row.wire_bytes and row.stats_bytes]
    if not both:
        return []
    return [
        "MB that leave a worker's interface in a step, and in brackets the payloads that "
        f"`handle.stats()` counts.\nHeaders add {min(both) - 1:.1%} to {max(both) - 1:.1%}, most "
        "where messages are smallest:",
        matrix(sent, "workers", lambda link: f"{link.workers}{link.suffix}", megabytes_twice),
    ]


def megabytes_twice(row: Row) -> str:
    counted = f" ({megabytes(row.stats_bytes)})" if row.stats_bytes else ""
    return megabytes(row.wire_bytes) + counted


def matrix(
    rows: Sequence[Row], corner: str, name: Callable[[Link], str], cell: Callable[[Row], str]
) -> str:
    """A line for each variant, and one column for all links of one name: its first says all."""
    columns = list(dict.fromkeys(name(link) for link in links_of(rows)))
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        lines.setdefault(row.what, {}).setdefault(name(row.link), cell(row))
    cells = [[corner, *columns]]
    for what, found in lines.items():
        title = what if what in BASELINES else f"`{what}`"
        cells.append([title, *(found.get(column, "") for column in columns)])
    head, *body = (f"| {' | '.join(line)} |".replace("  ", " ") for line in cells)
    return "\n".join([head, f"|{'---|' * len(cells[0])}", *body])


if __name__ == "__main__":
    main()
