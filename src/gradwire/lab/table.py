"""The table at the end: the same columns in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from gradwire.lab.records import Result
from gradwire.terminal.tables import Column, Stacked

NONE = "none"  # the codec that the others are compared with
NOTES = (
    "Behind none is how much worse the score is than that of `none`, in percent of it; below zero "
    "it is better. Bytes are what a worker sends to others in a step; their ratio is to a ring "
    "all-reduce of float32. Compute is forward, backward and update without any exchange. The "
    "stages of the exchange overlap with it and with each other, so the parts need not add up to "
    "the step."
)
SCORE_FORMATS = {"accuracy": ".2%"}


def score_title(result: Result) -> str:
    """Name the score in words."""
    return "test " + result.score_name.replace("_", " ")


def score(result: Result) -> str:
    """Write the score the way its kind is read."""
    return format(result.score, SCORE_FORMATS.get(result.score_name, ".4f"))


def direction(result: Result) -> str:
    """Say which way the score is good."""
    return f"{'higher' if result.higher_is_better else 'lower'} is better"


def behind(result: Result, results: Sequence[Result]) -> float | None:
    """Return how much worse the score is than that of `none`, as a share of it; negative if better.

    None if `none` is not among the results, or if its score is zero.
    """
    reference = next((other.score for other in results if other.codec == NONE), 0.0)
    if reference == 0:
        return None
    lost = reference - result.score if result.higher_is_better else result.score - reference
    return lost / reference


def main_columns(results: Sequence[Result]) -> list[Column[Result]]:
    """What a reader looks for first."""
    return [
        Column(_two_lines(score_title(results[0])), score),
        Column("behind\nnone", lambda r: _percent(behind(r, results))),
        Column("bytes\n/step", lambda r: f"{r.bytes_per_step:,.0f}"),
        Column("ratio to\nfloat32", lambda r: "-" if r.ratio is None else f"{r.ratio:.4f}"),
        Column("step\nms", lambda r: _milliseconds(r.step_s)),
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
    return f"{score_title(result).capitalize()}: {direction(result)}. {NOTES}"


def remarks(results: Sequence[Result]) -> list[str]:
    """Everything that is to be known of the results, each thing once."""
    return list(dict.fromkeys(remark for result in results for remark in result.remarks))


class Comparison:
    """The results for a terminal: tables, what their columns mean, and what is to be known."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for the width of the console."""
        groups = main_columns(self._results), other_columns()
        yield Stacked(self._results, lambda result: result.codec, groups)
        yield ""
        yield Text(caption(self._results[0]), style="italic dim")
        for remark in remarks(self._results):
            yield ""
            yield Text(remark)


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


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
