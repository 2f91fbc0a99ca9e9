"""The table at the end: the same columns in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.table import Table

from gradwire.lab.records import Result

NONE = "none"  # the codec that the others are compared with
NOTES = (
    "Behind none is how much worse the score is than that of `none`, in percent of it. "
    "Bytes are what a worker sends to others in a step; their ratio is to a ring all-reduce of "
    "float32. Compute is forward, backward and update without any exchange. The stages of the "
    "exchange overlap with it and with each other, so the parts need not add up to the step."
)
SCORE_FORMATS = {"accuracy": ".2%"}


class Column(NamedTuple):
    """A head of one or two lines, and what stands below it."""

    head: str
    cell: Callable[[Result], str]


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


def columns(results: Sequence[Result]) -> list[Column]:
    """Return the columns for these results."""
    return [
        Column("codec", lambda r: r.codec),
        Column(_two_lines(score_title(results[0])), score),
        Column("behind\nnone", lambda r: _percent(behind(r, results))),
        Column("test\nloss", lambda r: f"{r.loss:.4f}"),
        Column("bytes\n/step", lambda r: f"{r.bytes_per_step:,.0f}"),
        Column("ratio to\nfloat32", lambda r: "-" if r.ratio is None else f"{r.ratio:.4f}"),
        Column("bits\n/value", lambda r: f"{r.bits_per_value:.3f}"),
        Column("step\nms", lambda r: _milliseconds(r.step_s)),
        Column("compute\nms", lambda r: _milliseconds(r.compute_s)),
        Column("encode\nms", lambda r: _milliseconds(r.encode_s)),
        Column("comm.\nms", lambda r: _milliseconds(r.comm_s)),
        Column("decode\nms", lambda r: _milliseconds(r.decode_s)),
    ]


def caption(result: Result) -> str:
    """Explain the columns, and which way the score is good."""
    return f"{score_title(result).capitalize()}: {direction(result)}. {NOTES}"


def table(results: Sequence[Result]) -> Table:
    """Lay out the results for a terminal of 100 columns."""
    shown = Table(
        caption=caption(results[0]),
        caption_justify="left",
        box=None,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    for column in columns(results):
        left = column.head == "codec"
        shown.add_column(
            column.head,
            justify="left" if left else "right",
            vertical="bottom",
            overflow="fold",
            no_wrap=not left,
        )
    for result in results:
        shown.add_row(*(column.cell(result) for column in columns(results)))
    return shown


def _two_lines(title: str) -> str:
    """Break a title for a narrow column.

    >>> _two_lines("test accuracy"), _two_lines("test bits per character")
    ('test\\naccuracy', 'test bits\\n/character')
    """
    return title.replace(" per ", "\n/") if " per " in title else title.replace(" ", "\n", 1)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
