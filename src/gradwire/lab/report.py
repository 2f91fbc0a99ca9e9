"""The report: one HTML file that holds all it needs, plotly.js included."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from gradwire.lab.records import Result, Settings
from gradwire.lab.scores import behind, score_text, score_title
from gradwire.lab.table import caption, main_columns, other_columns, remarks
from gradwire.terminal.output import check_writable, counted
from gradwire.terminal.tables import Column

FILE_NAME = "index.html"
TEMPLATE = Path(__file__).with_name("report.html")
COLORS = (
    "#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#6cc5b0", "#ff8ab7", "#9c6b4e",
    "#97bbf5", "#9498a0", "#8fa31e", "#0f8b8d",
)  # fmt: skip
GOLDEN_ANGLE = 137.508  # degrees; multiples of it are far from each other


def check_possible(directory: Path) -> None:
    """Raise `ValueError` before any training, not after it, if there could be no report."""
    if importlib.util.find_spec("plotly") is None:
        raise ValueError("a report needs plotly: pip install 'gradwire[report]'.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"{directory} is not a directory; a report needs one.") from None
    except OSError as error:
        raise ValueError(f"{directory} cannot be made: {error.strerror}.") from None
    check_writable(directory / FILE_NAME)


def write_report(settings: Settings, results: Sequence[Result], directory: Path) -> Path:
    """Write the page into `directory` and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE_NAME
    path.write_text(page(settings, results), encoding="utf-8")
    return path


def page(settings: Settings, results: Sequence[Result]) -> str:
    """Return the report as HTML."""
    from plotly.offline import get_plotlyjs

    runs = [
        {"codec": r.codec, "color": color(i), "curve": r.to_json()["curve"]}
        for i, r in enumerate(results)
    ]
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"{settings.task} on {counted(settings.workers, 'worker')}"),
        facts=_facts(settings, results[0]),
        cards="".join(_card(result, results, color(i)) for i, result in enumerate(results)),
        table=_table(results),
        caption=_marked_up(caption(results[0])),
        remarks="".join(f'<p class="remark">{_marked_up(r)}</p>' for r in remarks(results)),
        runs=json.dumps(runs).replace("<", "\\u003c"),
        plotly=get_plotlyjs(),
    )


def color(index: int) -> str:
    """Give each codec one colour, the same in every plot."""
    if index < len(COLORS):
        return COLORS[index]
    return f"hsl({index * GOLDEN_ANGLE % 360:.0f}, 55%, 50%)"


def _facts(settings: Settings, result: Result) -> str:
    facts = (
        f"<b>{result.parameters:,}</b> parameters",
        _counted(settings.steps, "step"),
        f"{_counted(settings.batch, 'example')} a worker and step",
        f"learning rate <b>{settings.lr:g}</b>",
        f"seed <b>{settings.seed}</b>",
    )
    return " ".join(f"<span>{fact}</span>" for fact in facts)


def _counted(number: int, noun: str) -> str:
    figure, word = counted(number, noun).split()
    return f"<b>{figure}</b> {word}"


def _card(result: Result, results: Sequence[Result], color: str) -> str:
    number, words = _saving(result.ratio)
    return (
        f'<button class="card" aria-pressed="true" style="--codec: {color}">'
        f'{_name(result.codec)}<span><span class="large">{number}&times;</span> {words}</span>'
        f"<small>{score_text(result)} {escape(score_title(result))}"
        f"{_standing(behind(result, results))}</small></button>"
    )


def _name(codec: str) -> str:
    """Mark the places where a name may be broken.

    >>> _name("qsgd:bits=2,block=128")
    '<code><span>qsgd:</span><span>bits=2,</span><span>block=128</span></code>'
    """
    pieces = re.findall("[^:,]+[:,]?", codec)
    return f"<code>{''.join(f'<span>{escape(piece)}</span>' for piece in pieces)}</code>"


def _standing(share: float | None) -> str:
    """Say how far a score is behind that of `none`, whichever way it is good.

    >>> _standing(0.0123), _standing(-0.002), _standing(-0.0002), _standing(None)
    (', 1.2% worse than none', ', 0.2% better than none', '', '')
    """
    if share is None or math.isnan(share) or round(share, 3) == 0:
        return ""
    return f", {abs(share):.1%} {'worse' if share > 0 else 'better'} than none"


def _saving(ratio: float | None) -> tuple[str, str]:
    """Return how many times, and what; a single worker sends nothing and has no ratio.

    >>> _saving(0.125), _saving(1.0), _saving(1.5)
    (('8.0', 'fewer bytes'), ('1', 'the bytes of float32'), ('1.5', 'more bytes'))
    """
    if not ratio:
        return "0", "the bytes of float32"
    if abs(ratio - 1) < 0.005:
        return "1", "the bytes of float32"
    return (f"{1 / ratio:.1f}", "fewer bytes") if ratio < 1 else (f"{ratio:.1f}", "more bytes")


def _table(results: Sequence[Result]) -> str:
    columns = [*main_columns(results), *other_columns()]
    head = "".join(f"<th>{_joined(column.head)}</th>" for column in columns)
    rows = "".join(_row(result, columns, color(i)) for i, result in enumerate(results))
    return f"<table><thead><tr><th>codec</th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(result: Result, columns: Sequence[Column[Result]], color: str) -> str:
    name = f"<td><i></i>{_name(result.codec)}</td>"
    cells = "".join(f"<td>{escape(column.cell(result))}</td>" for column in columns)
    return f'<tr style="--codec: {color}">{name}{cells}</tr>'


def _marked_up(text: str) -> str:
    """Set what is in backquotes as code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", escape(text))


def _joined(head: str) -> str:
    """Undo the line breaks that a terminal needs."""
    return escape(head.replace("\n/", "/").replace("\n", " "))
