"""The command line of the lab, which finds what is wrong before it starts a worker."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from gradwire.lab.records import Result, Settings
from gradwire.lab.request import Request, is_first_worker, torchrun_workers
from gradwire.terminal.interrupts import interruptible
from gradwire.terminal.output import (
    FAILED,
    JsonFile,
    check_writable,
    complain,
    counted,
    deliver,
    refusing,
    show,
)


def train(
    codec: Annotated[
        list[str],
        typer.Option("--codec", "-c", metavar="SPEC", help="A codec to train with; repeatable."),
    ] = ["none", "qsgd:bits=4"],  # noqa: B006
    task: Annotated[
        str,
        typer.Option(
            "--task", "-t", metavar="NAME", help="mnist-cnn, mnist-fc, mnist-logistic or gpt-char."
        ),
    ] = "mnist-cnn",
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", help="Worker processes.", show_default="4")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Training steps.", show_default="the task's")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the data, instead of --steps.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Examples per worker and step.", show_default="the task's"),
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="The largest learning rate.", show_default="the task's")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the weights and the order of the data.")] = 0,
    threads: Annotated[int, typer.Option(help="Torch threads per worker.")] = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A directory with the four files of MNIST; for gpt-char, a text file.",
            show_default="a subset that comes along; Python's help topics",
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Join the workers by links such as 200mbit or 50mbit,delay=20ms; needs no root.",
            show_default="loopback",
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="SCORE",
            help="Measure how soon this score is reached on held-out data, such as 0.95.",
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="Evaluate after so many steps; the time it takes is not counted.",
            show_default="a 20th of the run, with --target a 50th",
        ),
    ] = None,
    algorithm: Annotated[
        list[str],
        typer.Option(
            "--algorithm",
            "-a",
            metavar="SPEC",
            help="sync, local (outer steps, such as local:every=30), async (workers wait for "
            "nobody, such as async:max_delay=50) or qsvrg (variance-reduced, such as "
            "qsvrg:inner=100,l2=0.001); repeatable.",
        ),
    ] = ["sync"],  # noqa: B006
    slow: Annotated[
        float,
        typer.Option(metavar="FACTOR", help="Let the last worker compute so many times slower."),
    ] = 1.0,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write plots to DIR/index.html, readable offline."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Train a task once per codec on real worker processes, and compare.

    Example: what do 4 bits cost in accuracy, and what do they save?

        gradwire train -w 4 -c none -c qsgd:bits=4 --report report

    And what do they save in time, if the workers are 200 Mbit/s apart?

        gradwire train -w 4 -c none -c qsgd:bits=4 --link 200mbit

    What if they exchange how far their weights have moved, every 30 steps?

        gradwire train -t gpt-char -c none --algorithm sync --algorithm local

    What if one of the workers is ten times slower than the others, and they do not wait for it?

        gradwire train -c qsgd:bits=4 --slow 10 --target 0.95 --algorithm sync --algorithm async

    And how near to the optimum of a convex loss do they come, if noise is to vanish there?

        gradwire train -t mnist-logistic -c qsgd:bits=8 --algorithm sync --algorithm qsvrg:l2=0.001

    The workers are started here and joined by gloo. To use those of torchrun instead, on one
    machine or many, start this command with it:

        torchrun --nproc-per-node 2 -m gradwire train -c qsgd:bits=4
    """
    request = Request(
        tuple(codec), task, workers, steps, epochs, batch, lr, seed, threads, data, link,
        target, eval_every, tuple(algorithm), slow,
    )  # fmt: skip
    settings = _checked(request, report, json_file)
    results = _run(settings, remarks=report is None)
    if results:
        _deliver(settings, results, report, json_file)
    if torchrun_workers():
        _leave()


def _leave() -> None:
    """End this worker of torchrun without the interpreter's own ending.

    A thread of gloo may still be dropping a buffer, needs the interpreter for that, and would end
    the process by SIGABRT (pytorch#190489): torchrun would call a finished run failed.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _checked(request: Request, report: Path | None, json_file: JsonFile) -> Settings:
    """Find what is wrong with the request before any worker starts."""
    from gradwire.lab.links.access import prepare
    from gradwire.lab.report.page import check_possible

    with refusing():
        if shape := request.shape():
            prepare(shape)
        settings = request.settings()
        if is_first_worker():
            check_writable(json_file)
            if report is not None:
                check_possible(report)
        return settings


def _run(settings: Settings, *, remarks: bool) -> list[Result]:
    """Return a result per codec; none on all but the first of torchrun's workers."""
    from gradwire.lab import workers
    from gradwire.lab.display import Display
    from gradwire.lab.training import train_all

    job = partial(train_all, settings)
    try:
        quiet = not is_first_worker()
        with interruptible(), Display(settings, quiet=quiet, remarks=remarks) as display:
            if torchrun_workers():
                workers.run_under_torchrun(job, display)
            else:
                workers.run(job, settings.workers, display, settings.link)
    except workers.WorkerError as error:
        complain(str(error))
        raise typer.Exit(FAILED) from None
    return display.results


def _deliver(
    settings: Settings, results: list[Result], report: Path | None, json_file: JsonFile
) -> None:
    from gradwire.lab.report.page import FILE_NAME, write_report
    from gradwire.lab.scores import sooner
    from gradwire.lab.table import Comparison, remarks

    def write(directory: Path) -> None:
        path = write_report(settings, results, directory)
        noted = len(remarks(results))
        more = f", and {counted(noted, 'remark')}" if noted else ""
        line = f"The curves, where the time went{more}: {path}"
        show(json_file, Group(Text(line, no_wrap=True, overflow="ignore")))

    files = {} if report is None else {report / FILE_NAME: partial(write, report)}
    rows = [each.to_json() | {"times_sooner": sooner(each, results)} for each in results]
    comparison = Comparison(results, brief=report is not None)
    deliver(rows, json_file, comparison, files=files)
