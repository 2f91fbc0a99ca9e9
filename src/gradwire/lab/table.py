"""The table at the end: the same columns in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gradwire.lab.records import Result
from gradwire.lab.scores import behind, direction, score_text, score_title, sooner, written
from gradwire.lab.summary import summary
from gradwire.terminal.tables import Column, Stacked

NOTES = (
    "Behind none is how much worse the score is than that of `none`, in percent of it; below zero "
    "it is better. Bytes are what a worker sends to others in a step; their ratio is to a ring "
    "all-reduce of float32. Compute is forward, backward and update without any exchange. The "
    "stages of the exchange overlap with it and with each other, so the parts need not add up to "
    "the step."
)
TARGET_NOTES = (
    "Steps, megabytes that a worker sent, and seconds are those until the test score first was as "
    "good as the target; evaluation is not counted."
)
NEVER = "never"
SMALL_RATIO = 0.01


def main_columns(results: Sequence[Result]) -> list[Column[Result]]:
    """What a reader looks for first."""
    return [
        *target_columns(results),
        Column(_two_lines(score_title(results[0])), score_text),
        Column("behind\nnone", lambda r: _percent(behind(r, results))),
        Column("bytes\n/step", lambda r: f"{r.bytes_per_step:,.0f}"),
        Column("ratio to\nfloat32", lambda r: _ratio(r.ratio)),
        Column("step\nms", lambda r: _milliseconds(r.step_s)),
    ]


def target_columns(results: Sequence[Result]) -> list[Column[Result]]:
    """How soon the target was reached, if there is one."""
    target = results[0].target
    if target is None:
        return []
    goal = f"\nto {written(target, results[0].score_name)}"
    return [
        Column("times\nsooner", lambda r: _times(sooner(r, results))),
        Column(f"seconds{goal}", lambda r: f"{r.reached.seconds:.1f}" if r.reached else NEVER),
        Column(f"steps{goal}", lambda r: f"{r.reached.step:,}" if r.reached else NEVER),
        Column(f"MB{goal}", lambda r: f"{r.reached.bytes / 1e6:.1f}" if r.reached else NEVER),
    ]


def other_columns() -> list[Column[Result]]:
    """What explains the main columns."""
    return [
        Column("test\nloss", lambda r: f"{r.loss:.4f}"),
        Column("bits\n/value", lambda r: f"{r.bits_per_value:.3f}"),
        Column("compute\nms", lambda r: _milliseconds(r.compute_s)),
        Column("encode\nms", lambda r: _milliseconds(r.encode_s)),
        Column("comm.\nms", lambda r: _milliseconds(r.comm_s)),
        Column("decode\nms", lambda r: _milliseconds(r.decode_s)),
    ]


def caption(result: Result) -> str:
    """Explain the columns, and which way the score is good."""
    notes = NOTES if result.target is None else f"{TARGET_NOTES} {NOTES}"
    return f"{_which_way(result)} {notes}"


def remarks(results: Sequence[Result]) -> list[str]:
    """Everything that is to be known of the results, each thing once."""
    return list(dict.fromkeys(remark for result in results for remark in result.remarks))


class Comparison:
    """The results for a terminal: tables, what is to be known, and what it all comes to.

    If it is brief, as beside a report, what is to be known is left to that, and so are columns that
    explain others.
    """

    def __init__(self, results: Sequence[Result], *, brief: bool = False) -> None:
        self._results = results
        self._brief = brief

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for the width of the console."""
        others = [] if self._brief else [other_columns()]
        groups = [main_columns(self._results), *others]
        yield Stacked(self._results, lambda result: result.label, groups)
        if words := self._caption():
            yield ""
            yield Text(words, style="italic dim")
        for remark in () if self._brief else remarks(self._results):
            yield ""
            yield Text(remark)
        yield ""
        yield Text(summary(self._results), style="bold")

    def _caption(self) -> str:
        first = self._results[0]
        if not self._brief:
            return caption(first)
        return "" if first.higher_is_better else _which_way(first)


def _two_lines(title: str) -> str:
    """Break a title for a narrow column.

    >>> _two_lines("test accuracy"), _two_lines("test bits per character")
    ('test\\naccuracy', 'test bits\\n/character')
    """
    return title.replace(" per ", "\n/") if " per " in title else title.replace(" ", "\n", 1)


def _percent(share: float | None) -> str:
    """Write a share in percent, with no sign if it rounds to zero.

    >>> _percent(0.0123), _percent(-0.00001), _percent(None)
    ('1.23%', '0.00%', '-')
    """
    return "-" if share is None else f"{round(share, 4) + 0.0:.2%}"


def _ratio(ratio: float | None) -> str:
    """Write a ratio to float32; of a small one, two digits.

    >>> _ratio(0.12345), _ratio(0.000337), _ratio(None)
    ('0.1235', '0.00034', '-')
    """
    if ratio is None:
        return "-"
    return f"{ratio:.4f}" if ratio >= SMALL_RATIO else f"{ratio:.2g}"


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.1f}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def _which_way(result: Result) -> str:
    return f"{score_title(result).capitalize()}: {direction(result)}."
