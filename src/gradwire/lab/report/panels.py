"""Codecs in words and numbers: a card for each, and the table of all."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

from gradwire.lab.records import Result
from gradwire.lab.report.series import Style
from gradwire.lab.scores import behind, score_text, score_title, sooner, written
from gradwire.lab.table import main_columns, other_columns
from gradwire.terminal.tables import Column

MANY = 100


def cards(results: Sequence[Result], styles: Sequence[Style]) -> str:
    """The legend: what each codec is drawn with, and what it came to."""
    return "".join(
        f'<button class="card" aria-pressed="true" data-series="{i}" style="{style.css}">'
        f'<svg class="key" viewBox="0 0 48 6"><path d="M0 3H48"/></svg>{name(result.label)}'
        f"{_headline(result, results)}<small>{_rest(result, results)}</small></button>"
        for i, (result, style) in enumerate(zip(results, styles, strict=True))
    )


def name(codec: str) -> str:
    """Mark the places where a name may be broken.

    >>> name("qsgd:bits=2,block=128")
    '<code><span>qsgd:</span><span>bits=2,</span><span>block=128</span></code>'
    """
    pieces = re.findall("[^:,]+[:,]?", codec)
    return f"<code>{''.join(f'<span>{escape(piece)}</span>' for piece in pieces)}</code>"


def marked_up(text: str) -> str:
    """Set what is in backquotes as code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", escape(text))


def _headline(result: Result, results: Sequence[Result]) -> str:
    if result.target is None:
        number, words = _saving(result.ratio)
    elif result.reached is None:
        number, words = "", f"never reached {written(result.target, result.score_name)}"
    else:
        times = sooner(result, results)
        number, words = f"{result.reached.seconds:.1f} s", _sooner(times)
    large = f'<span class="large">{number}</span> ' if number else ""
    return f"<span>{large}{words}</span>"


def _sooner(times: float | None) -> str:
    """Say how much sooner than `none`.

    >>> _sooner(6.62), _sooner(1.0), _sooner(0.5), _sooner(None)
    ('6.6&times; sooner', '', '2.0&times; later', '')
    """
    if times is None or times == 1:
        return ""
    return f"{times:.1f}&times; sooner" if times > 1 else f"{1 / times:.1f}&times; later"


def _rest(result: Result, results: Sequence[Result]) -> str:
    score = f"{score_text(result)} {escape(score_title(result))}"
    score += standing(behind(result, results))
    if result.target is None:
        return score
    return f"{' '.join(_saving(result.ratio))}; {score}"


def standing(share: float | None) -> str:
    """Say how far a score is behind that of `none`, whichever way it is good.

    >>> standing(0.0123), standing(-0.002), standing(-0.0002), standing(None)
    (', 1.2% worse than none', ', 0.2% better than none', '', '')
    """
    if share is None or math.isnan(share) or round(share, 3) == 0:
        return ""
    return f", {abs(share):.1%} {'worse' if share > 0 else 'better'} than none"


def _saving(ratio: float | None) -> tuple[str, str]:
    """Return how many times, and what; a single worker sends nothing and has no ratio.

    >>> _saving(0.125), _saving(1.5)
    (('8.0&times;', 'fewer bytes'), ('1.5&times;', 'more bytes'))
    >>> _saving(1 / 3061.2)
    ('3,061&times;', 'fewer bytes')
    >>> _saving(1.0)
    ('1&times;', 'the bytes of float32')
    """
    if not ratio:
        return "0&times;", "the bytes of float32"
    if abs(ratio - 1) < 0.005:
        return "1&times;", "the bytes of float32"
    if ratio < 1:
        return f"{_times(1 / ratio)}&times;", "fewer bytes"
    return f"{_times(ratio)}&times;", "more bytes"


def _times(factor: float) -> str:
    """With a decimal only where it says something."""
    return f"{factor:.1f}" if factor < MANY else f"{factor:,.0f}"


def table(results: Sequence[Result], styles: Sequence[Style]) -> str:
    """All columns of the terminal's tables in one."""
    columns = [*main_columns(results), *other_columns()]
    head = "".join(f"<th>{_joined(column.head)}</th>" for column in columns)
    rows = "".join(
        _row(result, columns, style) for result, style in zip(results, styles, strict=True)
    )
    return f"<table><thead><tr><th>codec</th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(result: Result, columns: Sequence[Column[Result]], style: Style) -> str:
    title = f"<td><i></i>{name(result.label)}</td>"
    cells = "".join(f"<td>{escape(column.cell(result))}</td>" for column in columns)
    return f'<tr style="{style.css}">{title}{cells}</tr>'


def _joined(head: str) -> str:
    """Undo the line breaks that a terminal needs."""
    return escape(head.replace("\n/", "/").replace("\n", " "))
