"""The table at the end: the same columns in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.table import Table

from gradwire.lab.records import Result

CAPTION = (
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


def columns(result: Result) -> list[Column]:
    """Return the columns for results like this one."""
    return [
        Column("codec", lambda r: r.codec),
        Column(score_title(result).replace(" ", "\n", 1), score),
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


def table(results: Sequence[Result]) -> Table:
    """Lay out the results for a terminal of 100 columns."""
    shown = Table(
        caption=CAPTION,
        caption_justify="left",
        box=None,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    for column in columns(results[0]):
        left = column.head == "codec"
        shown.add_column(
            column.head,
            justify="left" if left else "right",
            vertical="bottom",
            overflow="fold",
            no_wrap=not left,
        )
    for result in results:
        shown.add_row(*(column.cell(result) for column in columns(result)))
    return shown


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
