"""`gradwire bench`: the benchmark for people, with a bar while it runs and a table at its end."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gradwire.output import (
    JsonFile,
    check_at_least_one,
    check_writable,
    console,
    interruptible,
    refusing,
    write_json,
)

if TYPE_CHECKING:
    from gradwire.bench import Bench, Row, Setup

CODECS = [
    "none",
    "fp16",
    "bf16",
    "qsgd:bits=4",
    "qsgd:bits=2,block=128",
    "qsgd:bits=8",
    "qsgd:bits=4,wire=zstd",
    "qsgd:levels=1,norm=l2,wire=elias",
    "dqsg",
    "dqsg:bits_per_value=2.0",
    "ndqsg",
    "global-qsgd",
    "global-qsgd:dither=subtractive",
    "global-qsgd:dither=exponential",
    "fft",
    "fft:domain=dct",
    "fft:domain=time",
    "gradiveq",
]
_HEADS = (
    "encode\nGv/s", "decode\nGv/s", "memcpy\nGv/s", "encode\n/memcpy", "decode\n/memcpy",
    "encode\n/eager", "bits\n/value", "nmse",
)  # fmt: skip


class Dtype(str, Enum):
    """The types that codecs encode."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


def bench(
    codec: Annotated[
        list[str],
        typer.Option(
            "--codec",
            "-c",
            metavar="SPEC",
            help="A codec to measure; repeatable.",
            show_default="every codec",
        ),
    ] = CODECS,
    numel: Annotated[int, typer.Option(help="Values in the vector.")] = 25_600_000,
    threads: Annotated[int, typer.Option(help="Threads of torch and of the codecs.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="Type of the gradients.")] = Dtype.float32,
    repeat: Annotated[int, typer.Option(help="Rounds at least; the best of them counts.")] = 15,
    seconds: Annotated[float, typer.Option(help="Go on with rounds for at least so long.")] = 15.0,
    seed: Annotated[int, typer.Option(help="Decides the data and the rounding.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Measure codecs on Gaussian data: speed beside memcpy and eager torch, bits, error.

    Example: is 4-bit QSGD as fast as memory on this machine?

        gradwire bench -c qsgd:bits=4 -c qsgd:bits=4,wire=zstd --json bench.json
    """
    from gradwire.bench import Bench, Setup

    setup = Setup(tuple(codec), numel, threads, dtype.value, repeat, seconds, seed)
    with refusing():
        check_writable(json_file)
        _check(setup)
    with interruptible():
        with refusing():
            prepared = Bench(setup)
        rows = _run(prepared, console(stderr=True))
    console(json_file).print(table(rows))
    write_json([row.to_json() for row in rows], json_file)


def _check(setup: Setup) -> None:
    """Raise `ValueError` or `TypeError` for what cannot be measured."""
    from gradwire import Key, parse

    check_at_least_one(numel=setup.numel, threads=setup.threads, repeat=setup.repeat)
    if not 0 <= setup.seconds < inf:
        raise ValueError(f"`seconds` must be 0 or more, got {setup.seconds}.")
    Key(seed=setup.seed)
    for spec in setup.specs:
        parse(spec)


def _run(prepared: Bench, err: Console) -> list[Row]:
    columns = TextColumn("measuring"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        for done in prepared.run():
            bar.update(task, completed=done)
    return prepared.rows()


def table(rows: Sequence[Row]) -> Table:
    """The rows for people, in 100 columns."""
    shown = Table(
        box=None, padding=(0, 1), collapse_padding=True, pad_edge=False, caption_justify="left"
    )
    shown.add_column("codec", vertical="bottom", overflow="fold")
    for head in _HEADS:
        shown.add_column(head, justify="right", vertical="bottom", no_wrap=True)
    for row in rows:
        shown.add_row(*_cells(row))
    first = rows[0]
    shown.caption = (
        f"{first.numel:,} {first.dtype} values, {first.threads} thread(s), best of the rounds; "
        "Gv/s: 10^9 values a second. decode adds to its target. eager: 4-bit QSGD in eager torch, "
        f"encode {first.eager_gvps:.3f} Gv/s. gradiveq learns nothing from noise: it is timed with "
        "random axes, an eighth as many as values."
    )
    return shown


def _cells(row: Row) -> list[str]:
    ratios = row.to_json()
    return [
        row.codec,
        *(f"{value:.3f}" for value in (row.encode_gvps, row.decode_gvps, row.memcpy_gvps)),
        f"{ratios['encode_vs_memcpy']:.2f}",
        f"{ratios['decode_vs_memcpy']:.2f}",
        f"{ratios['encode_vs_eager']:.1f}",
        f"{row.bits_per_value:.3f}",
        f"{row.nmse:.2e}" if row.nmse else "0",
    ]
