"""`gradwire selftest`: whether all is well on this machine, and a file to report what is not."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from gradwire.terminal.interrupts import interruptible
from gradwire.terminal.output import (
    BAD_REQUEST,
    FAILED,
    check_writable,
    complain,
    console,
    counted,
    deliver,
    discard,
    refusing,
)

if TYPE_CHECKING:
    from gradwire.lab.selftest.plan import Plan
    from gradwire.lab.selftest.records import Outcome

REPORT = Path("gradwire-selftest.json")
MOST_SHOWN = 20  # kernels and codecs that failed; all of them are in the report


class Device(str, Enum):
    """What tensors can be on."""

    cpu = "cpu"
    cuda = "cuda"


def selftest(
    device: Annotated[
        Device | None,
        typer.Option(help="What to test.", show_default="cuda if there is a GPU, else cpu"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A stage, or a case of one such as kernels/quantize; repeatable.",
            show_default="everything",
        ),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option("--thorough", help="On a GPU, call kernels with all settings, not with some."),
    ] = False,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "--json", metavar="FILE",
            help="Where to write the report, as JSON; - is standard output.",
        ),
    ] = REPORT,
) -> None:  # fmt: skip
    """Check kernels, collectives and training on this machine, and measure codecs.

    Every kernel must have the bits of the reference, every worker those of a mean that one process
    works out, and a short training the loss that the reference kernels give. The last line says
    whether all is well. If it is not, attach the report to an issue.

    Example: one kernel alone, such as one that has failed.

        gradwire selftest --device cpu --only kernels/philox
    """
    with refusing():
        plan = _plan(device, tuple(only or ()), thorough)
        check_writable(output)
    err, start = console(stderr=True), time.perf_counter()
    with interruptible():
        outcomes = _run(plan, err)
    if not any(outcome.cases or outcome.failures for outcome in outcomes):
        complain("there is nothing that is called as `--only` says; leave it out to see names.")
        raise typer.Exit(BAD_REQUEST)
    report = _report(plan, outcomes, time.perf_counter() - start)
    deliver([report], output, shown(plan, report, outcomes, output))
    if not report["passed"]:
        raise typer.Exit(FAILED)


def _plan(device: Device | None, only: tuple[str, ...], thorough: bool) -> Plan:
    """Raises `ValueError` if it cannot be done."""
    from gradwire.lab.selftest.plan import Plan, check_device, check_only, default_device

    name = default_device() if device is None else device.value
    check_device(name)
    check_only(only)
    return Plan(name, only, thorough)


def _run(plan: Plan, err: Console) -> list[Outcome]:
    """A bar while it runs, or a line for every stage."""
    from gradwire.lab.selftest.stages import stages

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)
        outcomes = []
        for outcome in stages(
            plan, lambda done, what: bar.update(task, completed=done, description=what)
        ):
            outcomes.append(outcome)
            _say(err, summary(outcome))
    return outcomes


def _say(err: Console, line: str) -> None:
    """Print a line; the test goes on if there is no room for it, as on a full disk."""
    try:
        err.print(line, markup=False, highlight=False, soft_wrap=True)
    except OSError:
        discard(sys.stderr)


_FOUND = {
    "kernels": ("kernel", "the bits of the reference"),
    "collectives": ("codec", "the same mean on every worker, that of one process"),
    "training": ("codec", "the losses that the reference kernels give"),
    "speed": ("codec", "measured"),
}


def summary(outcome: Outcome) -> str:
    """A stage in one line."""
    noun, well = _FOUND[outcome.stage]
    what = f"{len(outcome.failures):,} FAILED" if outcome.failures else well
    line = (
        f"{outcome.stage}: {counted(len(outcome.subjects), noun)}, "
        f"{counted(outcome.cases, 'case')}: {what} ({outcome.seconds:.0f} s)"
    )
    return f"{line}; {len(outcome.missing)} not for this device" if outcome.missing else line


def _report(plan: Plan, outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    from gradwire.lab.selftest.about import about

    return {
        "passed": not any(outcome.failures for outcome in outcomes),
        "seconds": round(seconds, 1),
        "about": about(plan.device),
        "workers": plan.workers,
        "backend": plan.backend,
        "only": list(plan.only),
        "stages": [outcome.to_json(plan.repeat) for outcome in outcomes],
    }


def shown(plan: Plan, report: dict[str, Any], outcomes: Sequence[Outcome], output: Path) -> Group:
    """The report for people; its last line is the verdict."""
    parts: list[RenderableType] = []
    rows = [row for outcome in outcomes for row in outcome.rows]
    if rows:
        from gradwire.cli.bench import table

        parts += [table(rows), ""]
    missing = [each for outcome in outcomes for each in outcome.missing.items()]
    parts += [_line(f"not for this device: {name}: {why}") for name, why in missing]
    parts += _failures(plan, outcomes)
    return Group(*parts, _verdict(report, output))


def _failures(plan: Plan, outcomes: Sequence[Outcome]) -> Iterator[Text]:
    """The first of each kernel and codec, and how many there are."""
    found = [failures for outcome in outcomes for failures in outcome.failed().values()]
    for first, *others in found[:MOST_SHOWN]:
        yield _line(f"{first.case}: {first.what}", "red")
        yield _line(f"  again: {plan.repeat(first.case)}")
        if others:
            yield _line(f"  and {counted(len(others), 'more case')} of it")
    if len(found) > MOST_SHOWN:
        yield _line(f"and {len(found) - MOST_SHOWN:,} more kernels and codecs")


def _verdict(report: dict[str, Any], output: Path) -> Text:
    """Is all well?"""
    what = f"gradwire {report['about']['gradwire']} on {report['about']['device']}"
    if report["passed"]:
        return _line(f"All is well with {what}, after {report['seconds']:.0f} s.", "bold green")
    return _line(
        f"All is not well with {what}. Please open an issue and attach {output}.", "bold red"
    )


def _line(text: str, style: str = "") -> Text:
    """However long it is, for whoever searches for it."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")
