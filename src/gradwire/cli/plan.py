"""`gradwire plan`: how long a step will take with each codec, and which one to use, if any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.text import Text

from gradwire.terminal.output import (
    JsonFile,
    check_codecs,
    check_writable,
    deliver,
    refusing,
    show,
)
from gradwire.terminal.tables import Column, Stacked

if TYPE_CHECKING:
    from gradwire.planner.advice import Row
    from gradwire.planner.request import Planned


def plan(
    params: Annotated[
        str | None, typer.Option(metavar="N", help="Parameters of the model, such as 1.3e9.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", help="Workers.")] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Of one worker's link, such as 10gbit."),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Of a message one way.", show_default="50us"),
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Forward and backward pass, such as 300ms."),
    ] = None,
    cores: Annotated[
        float | None,
        typer.Option(help="Cores of a worker: compute takes one.", show_default="4"),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `gradwire probe --json FILE` has measured."),
    ] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec", "-c", metavar="SPEC", help="A codec to plan with; repeatable.",
            show_default="every codec, or those of the profile",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with sliders, readable offline."),
    ] = None,
    json_file: JsonFile = None,
) -> None:  # fmt: skip
    """Predict the step time with each codec, and say which one to use, if any.

    Example: does it pay to compress 1.3 billion parameters among 64 workers?

        gradwire plan --params 1.3e9 --workers 64 --bandwidth 10gbit --latency 50us --compute 300ms

    Without a profile, codecs are as fast as on the machine that the output names. To plan with your
    own machines, link and model, measure them with `gradwire probe --json p.json`, and say
    `--profile p.json` here; what else is said then takes the place of what was measured.
    """
    with refusing():
        check_codecs(codec or [])
        for path in (json_file, html):
            check_writable(path)
        from gradwire.planner.request import Request

        request = Request(
            params, workers, bandwidth, latency, compute, cores, profile, tuple(codec or ())
        )
        planned = request.planned()
    files = {} if html is None else {html: lambda: _write_page(planned, html, json_file)}
    deliver([planned.to_json()], json_file, shown(planned), files=files)


def _write_page(planned: Planned, path: Path, json_file: Path | None) -> None:
    from gradwire.planner.page import page

    path.write_text(page(planned), encoding="utf-8")
    show(json_file, Text(f"Page: {path}", no_wrap=True, overflow="ignore"))


def shown(planned: Planned) -> Group:
    """The prediction for people."""
    from gradwire.planner.units import show_seconds

    caption = (
        f"{planned.describe()}. Plain DDP takes {show_seconds(planned.plain_s)} a step. bytes: "
        "what a worker sends in a step. error: of a message, |decoded - x|^2 / |x|^2, of Gaussian "
        "values. pays below: the bandwidth below which it beats plain DDP. paper: step time by the "
        "model of the Global-QSGD paper."
    )
    table = Stacked(planned.rows, lambda row: row.codec, [_main(), _more()])
    return Group(
        table, "", Text(planned.sentence, style="bold"), "", Text(caption, style="italic dim")
    )


def _main() -> Sequence[Column[Row]]:
    from gradwire.planner.units import show_bytes, show_rate, show_seconds

    def below(row: Row) -> str:
        if row.pays_everywhere:
            return "any"
        return "-" if row.pays_below is None else show_rate(row.pays_below / 8)

    return [
        Column("step", lambda row: show_seconds(row.step_s)),
        Column("bytes", lambda row: show_bytes(row.bytes)),
        Column("over\nDDP", lambda row: f"{row.speedup:.2f}x"),
        Column("over\nbf16", lambda row: f"{row.speedup_bf16:.2f}x"),
        Column("error", lambda row: f"{row.nmse:.1e}" if row.nmse else "0"),
        Column("pays\nbelow", below),
    ]


def _more() -> Sequence[Column[Row]]:
    from gradwire.planner.units import show_seconds

    return [Column("paper", lambda row: show_seconds(row.paper_s))]
