"""`gradwire bench`: the benchmark for people, with a bar while it runs and a table at its end."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gradwire.terminal.interrupts import interruptible
from gradwire.terminal.output import (
    JsonFile,
    check_at_least_one,
    check_codecs,
    check_seed,
    check_threads,
    check_writable,
    console,
    counted,
    deliver,
    refusing,
)
from gradwire.terminal.tables import Column, Stacked

if TYPE_CHECKING:
    from gradwire.lab.bench import Bench, Row

CODECS = [
    "none",
    "fp16",
    "bf16",
    "lossless",
    "qsgd:bits=4",
    "qsgd:bits=2,block=128",
    "qsgd:bits=8",
    "qsgd:bits=4,wire=zstd",
    "qsgd:levels=1,norm=l2,wire=elias",
    "dqsg",
    "dqsg:bits_per_value=2.0",
    "ndqsg",
    "eden",
    "eden:bits=1",
    "global-qsgd",
    "global-qsgd:dither=subtractive",
    "global-qsgd:dither=exponential",
    "thc",
    "thc:bits=2",
    "fft",
    "fft:domain=dct",
    "fft:domain=time",
    "topk",
    "gradiveq",
    "powersgd",
]
NOTES = {
    "gradiveq": "gradiveq learns nothing from noise: it is timed with random axes, an eighth as "
    "many as values.",
    "powersgd": "powersgd takes the vector for a matrix, as square as it can be; noise has no "
    "low rank.",
}


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
    repeat: Annotated[int, typer.Option(help="Rounds, at least; the best one counts.")] = 15,
    seconds: Annotated[float, typer.Option(help="Measure for at least this long.")] = 15.0,
    seed: Annotated[int, typer.Option(help="Seed of the data and of the rounding.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Measure codecs on Gaussian data: speed beside memcpy and eager torch, bits, error.

    Example: what does zstd add to 4-bit QSGD, and what does it save?

        gradwire bench -c qsgd:bits=4 -c qsgd:bits=4,wire=zstd --numel 1000000 --seconds 1
    """
    with refusing():
        _check(codec, numel, threads, repeat, seconds, seed)
        check_writable(json_file)
    from gradwire.lab.bench import Bench, Setup

    setup = Setup(tuple(codec), numel, threads, dtype.value, repeat, seconds, seed)
    with interruptible():
        with refusing():
            prepared = Bench(setup)
        rows = _run(prepared, console(stderr=True))
    deliver([row.to_json() for row in rows], json_file, table(rows))


def _check(
    codecs: Sequence[str], numel: int, threads: int, repeat: int, seconds: float, seed: int
) -> None:
    """Raise `ValueError` for what cannot be measured."""
    check_at_least_one(numel=numel, repeat=repeat)
    check_threads(threads)
    if not 0 <= seconds < inf:
        raise ValueError(f"`--seconds` must be 0 or more, got {seconds:g}.")
    check_seed(seed)
    check_codecs(codecs)


def _run(prepared: Bench, err: Console) -> list[Row]:
    columns = TextColumn("measuring"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        for done in prepared.run():
            bar.update(task, completed=done)
    return prepared.rows()


def table(rows: Sequence[Row]) -> Group:
    """The rows for people."""
    first = rows[0]
    caption = (
        f"{counted(first.numel, f'{first.dtype} value')}, "
        f"{counted(first.threads, 'thread')}, best of the rounds; Gv/s: 10^9 values a second. "
        "decode adds to its target. eager: 4-bit QSGD in eager torch, encode "
        f"{first.eager_gvps:.3f} Gv/s."
    )
    for name, note in NOTES.items():
        if any(row.codec.startswith(name) for row in rows):
            caption += f" {note}"
    shown = Stacked(rows, lambda row: row.codec, [_speeds(), _costs()])
    return Group(shown, "", Text(caption, style="italic dim"))


def _speeds() -> list[Column[Row]]:
    return [
        Column("encode\nGv/s", lambda row: f"{row.encode_gvps:.3f}"),
        Column("decode\nGv/s", lambda row: f"{row.decode_gvps:.3f}"),
        Column("memcpy\nGv/s", lambda row: f"{row.memcpy_gvps:.3f}"),
        Column("encode\n/memcpy", lambda row: f"{row.to_json()['encode_vs_memcpy']:.2f}"),
        Column("decode\n/memcpy", lambda row: f"{row.to_json()['decode_vs_memcpy']:.2f}"),
        Column("encode\n/eager", lambda row: f"{row.to_json()['encode_vs_eager']:.1f}"),
    ]


def _costs() -> list[Column[Row]]:
    return [
        Column("bits\n/value", lambda row: f"{row.bits_per_value:.3f}"),
        Column("nmse", lambda row: f"{row.nmse:.2e}" if row.nmse else "0"),
    ]
