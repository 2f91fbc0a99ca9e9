"""What the lab shows while it runs."""

from __future__ import annotations

import sys
from types import TracebackType

from rich import progress

from gradwire.lab.links.shape import Shape
from gradwire.lab.records import Event, Progress, Result, Settings
from gradwire.lab.scores import score_text, score_title
from gradwire.terminal.output import console, counted, discard

MOST_NAMED = 4  # trainings in the line that says what will be done


def _on(link: Shape | None) -> str:
    return "" if link is None else f" joined by links of {link.title}"


def _but(slow: float) -> str:
    return "" if slow == 1 else f", the last one slowed by a factor of {slow:g},"


def _all_of(settings: Settings) -> str:
    labels = [training.label for training in settings.trainings]
    if len(labels) <= MOST_NAMED:
        return ", ".join(labels)
    codecs, algorithms = len(settings.codecs), len(settings.algorithms)
    ways = "" if algorithms == 1 else f" and {counted(algorithms, 'algorithm')}"
    return counted(codecs, "codec") + ways


class Display:
    """A bar per codec on a terminal; elsewhere a line per codec when it is finished.

    Remarks are shown as they come, unless there is another place for them.
    """

    def __init__(self, settings: Settings, *, quiet: bool, remarks: bool = True) -> None:
        self.results: list[Result] = []
        self._remarks = remarks
        self._out = out = console(stderr=True)
        out.quiet = quiet
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[loss]}"),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
            console=out,
            disable=not out.is_terminal,
        )
        labels = [training.label for training in settings.trainings]
        self._ids = [
            self._bars.add_task(label, total=settings.steps, loss="", start=False)
            for label in labels
        ]
        self._say(
            f"{settings.task}: {counted(settings.steps, 'step')} on "
            f"{counted(settings.workers, 'worker')}{_on(settings.link)}{_but(settings.slow)} "
            f"with {_all_of(settings)}"
        )

    def __call__(self, event: Event) -> None:
        """Show what happened."""
        if isinstance(event, Progress):
            self._bars.start_task(self._ids[event.index])
            self._bars.update(
                self._ids[event.index], completed=event.step, loss=f"loss {event.loss:.3f}"
            )
        elif isinstance(event, Result):
            self._finish(event)
        elif self._remarks:
            self._say(event.text)

    def _finish(self, event: Result) -> None:
        self.results.append(event)
        if not self._out.is_terminal:
            self._say(
                f"{event.label}: {score_title(event)} {score_text(event)}, "
                f"test loss {event.loss:.4f}, "
                f"{event.bytes_per_step:,.0f} bytes and {event.step_s:.3f} s a step"
            )

    def _say(self, line: str) -> None:
        """Print a line; training goes on if there is no room for it, as on a full disk."""
        try:
            self._out.print(line, markup=False, soft_wrap=True)
        except OSError:
            discard(sys.stderr)

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
