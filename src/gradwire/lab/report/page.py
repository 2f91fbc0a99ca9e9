"""The page as a whole: its parts are put into `page.html`, with the style and the script."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from gradwire.lab.records import Result, Settings
from gradwire.lab.report import panels
from gradwire.lab.report.about import about
from gradwire.lab.report.charts import charts
from gradwire.lab.report.layers import layers
from gradwire.lab.report.series import styles
from gradwire.lab.report.times import bars
from gradwire.lab.summary import summary
from gradwire.lab.table import caption, remarks
from gradwire.terminal.output import check_writable, counted

FILE_NAME = "index.html"
FOLDER = Path(__file__).parent


def check_possible(directory: Path) -> None:
    """Raise `ValueError` before any training, not after it, if there could be no report."""
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
    path.write_text(page(settings, results, about()), encoding="utf-8")
    return path


def page(settings: Settings, results: Sequence[Result], origin: Mapping[str, str]) -> str:
    """Return the report as HTML; `origin` is what the results come from, by name."""
    looks = styles([result.label for result in results])
    first, *others = [chart.html() for chart in charts(results, looks)]
    by_layer = layers(results)
    return Template(_read("page.html")).substitute(
        title=escape(_title(settings)),
        summary=panels.marked_up(summary(results)),
        facts=_facts(settings, results[0]),
        cards=panels.cards(results, looks),
        first=first,
        others="".join(others),
        bars=bars(results),
        layers=by_layer,
        hidden="" if by_layer else " hidden",
        table=panels.table(results, looks),
        caption=panels.marked_up(caption(results[0])),
        remarks="".join(f'<p class="remark">{panels.marked_up(r)}</p>' for r in remarks(results)),
        origin=_origin(origin),
        names=json.dumps([result.label for result in results]).replace("<", "\\u003c"),
        style=_read("page.css"),
        script=_read("page.js"),
    )


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _title(settings: Settings) -> str:
    link = "loopback" if settings.link is None else settings.link.title
    return f"{settings.task} on {counted(settings.workers, 'worker')}, {link}"


def _facts(settings: Settings, result: Result) -> str:
    facts = (
        f"{result.parameters:,} parameters",
        counted(settings.steps, "step"),
        f"{counted(settings.batch, 'example')} a worker and step",
        f"learning rate {settings.lr:g}",
        f"seed {settings.seed}",
        *([f"{settings.slow:g} times slower: the last worker"] if settings.slow > 1 else []),
    )
    marked = [re.sub(r"([\d,.]+)", r"<b>\1</b>", fact, count=1) for fact in facts]
    return " ".join(f"<span>{fact}</span>" for fact in marked)


def _origin(origin: Mapping[str, str]) -> str:
    pairs = (
        f"<dt>{escape(name)}</dt><dd>{_coded(name, text)}</dd>" for name, text in origin.items()
    )
    return f"<dl>{''.join(pairs)}</dl>"


def _coded(name: str, text: str) -> str:
    return f"<code>{escape(text)}</code>" if name == "command" else escape(text)
