"""`gradwire probe`: what this link, these cores and this model take, for `gradwire plan`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from gradwire.lab.request import is_first_worker, torchrun_workers
from gradwire.terminal.interrupts import interruptible
from gradwire.terminal.output import (
    FAILED,
    JsonFile,
    check_codecs,
    check_writable,
    complain,
    console,
    deliver,
    refusing,
)

if TYPE_CHECKING:
    from gradwire.lab.probe.run import Subject
    from gradwire.planner.profile import Profile

CODECS = ["none", "bf16", "qsgd:bits=4", "dqsg", "dqsg:bits_per_value=2.0", "global-qsgd", "fft"]
MOST_PARAMS = 10**9


@dataclass(frozen=True)
class Request:
    """What is measured; picklable, so that workers get it."""

    codecs: tuple[str, ...]
    task: str | None
    params: int | None
    seconds: float

    def subject(self) -> Subject:
        """The model."""
        from gradwire.lab.probe.run import Subject, flat

        if self.params is not None:
            return flat(self.params)
        from gradwire.lab.tasks import TASKS

        task = TASKS[self.task or "mnist-cnn"]

        def make() -> Any:
            split = task.data(None).train
            inputs, targets = split.inputs[: task.batch], split.targets[: task.batch]
            return task.model(), lambda ddp: task.loss(ddp(inputs), targets)

        return Subject(make, task.name)

    def __call__(self, listener: Callable[[Any], None]) -> None:
        """Be one of the workers."""
        import torch

        from gradwire.lab.probe.run import probe

        torch.set_num_threads(1)
        found = probe(
            self.subject(), self.codecs, self.seconds, lambda done, what: listener((done, what))
        )
        listener(found)


def probe(
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", help="Local worker processes.", show_default="2"),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", "-t", metavar="NAME", help="mnist-cnn, mnist-fc, mnist-logistic or gpt-char.",
            show_default="mnist-cnn",
        ),
    ] = None,
    params: Annotated[
        str | None,
        typer.Option(metavar="N", help="Instead of a task, layers with so many parameters."),
    ] = None,
    codec: Annotated[
        list[str],
        typer.Option("--codec", "-c", metavar="SPEC", help="A codec to measure; repeatable."),
    ] = CODECS,
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 12.0,
    json_file: JsonFile = None,
) -> None:  # fmt: skip
    """Measure link, cores, codecs and a model, for `gradwire plan --profile`.

    Example: two workers on this machine; `gradwire plan --profile p.json` says what follows.

        gradwire probe --workers 2 --task mnist-cnn --json p.json

    To measure the link between machines, start it there with torchrun:

        torchrun --nnodes 2 --nproc-per-node 1 ... -m gradwire probe --json p.json
    """
    with refusing():
        request = _checked(workers, task, params, codec, seconds)
        if is_first_worker():
            check_writable(json_file)
    found = _run(request, workers or torchrun_workers() or 2)
    if found is not None:
        from gradwire.lab.probe.summary import shown

        deliver([found.to_json()], json_file, shown(found))
    if torchrun_workers():
        _leave()


def _checked(
    workers: int | None, task: str | None, params: str | None, codecs: Sequence[str],
    seconds: float,
) -> Request:  # fmt: skip
    from gradwire.lab.tasks import TASKS
    from gradwire.planner import units

    check_codecs(codecs)
    if workers is not None and workers < 2:
        raise ValueError(f"`--workers` must be at least 2 to have a link, got {workers}.")
    if workers is not None and torchrun_workers() not in (None, workers):
        raise ValueError(
            f"`--workers` is {workers}, but torchrun started {torchrun_workers()}; leave it out."
        )
    if task is not None and task not in TASKS:
        raise ValueError(f"`--task` must be one of {', '.join(TASKS)}, got {task}.")
    if task is not None and params is not None:
        raise ValueError("`--task` and `--params` both say what the model is; give one of them.")
    if not 1 <= seconds < inf:
        raise ValueError(f"`--seconds` must be at least 1, got {seconds:g}.")
    size = None if params is None else units.count(params, "--params")
    if size is not None and not 100_000 <= size <= MOST_PARAMS:
        raise ValueError(f"`--params` must be from 1e5 to 1e9 to be measured, got {params}.")
    return Request(tuple(dict.fromkeys(codecs)), task, size, seconds)


def _run(request: Request, num_workers: int) -> Profile | None:
    """The profile; none on all but the first of torchrun's workers."""
    from gradwire.lab import workers
    from gradwire.planner.profile import Profile

    found: list[Profile] = []
    err = console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    hidden = not err.is_terminal or not is_first_worker()
    with Progress(*columns, console=err, transient=True, disable=hidden) as bar:
        shown = bar.add_task("starting", total=1.0)

        def listen(event: Any) -> None:
            if isinstance(event, Profile):
                found.append(event)
            else:
                bar.update(shown, completed=event[0], description=event[1])

        try:
            with interruptible():
                if torchrun_workers():
                    workers.run_under_torchrun(cast(Any, request), cast(Any, listen))
                else:
                    workers.run(cast(Any, request), num_workers, cast(Any, listen))
        except workers.WorkerError as error:
            complain(str(error))
            raise typer.Exit(FAILED) from None
    return found[0] if found else None


def _leave() -> None:
    """As `gradwire train` does: a thread of gloo may not outlive the interpreter."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
