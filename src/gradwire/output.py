"""Where the results of a command go, and how it refuses.

Tables go to standard output, or to standard error if JSON takes standard output. What the user
got wrong is one sentence on standard error and exit code 2, before any work is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

STDOUT = Path("-")
BAD_REQUEST = 2
INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
PLAIN_WIDTH = 100

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the results; - is standard output."),
]


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a `ValueError` or `TypeError` about what the user typed into a sentence and exit 2.

    Wrap the checks in it, not the work: an error in there is ours and deserves its traceback.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(BAD_REQUEST) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the command in silence."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def check_at_least_one(**numbers: int) -> None:
    """Raise `ValueError` for the first number below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"`{name}` must be at least 1, got {number}.")


def check_writable(path: Path | None) -> None:
    """Raise `ValueError` unless JSON can be written there; the attempt leaves no file behind."""
    if path is None or path == STDOUT:
        return
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}.") from None


def console(json_file: Path | None = None, *, stderr: bool = False) -> Console:
    """A console for people: plain text of 100 columns unless it is a terminal."""
    terminal = Console(stderr=stderr or json_file == STDOUT)
    if terminal.is_terminal:
        return terminal
    return Console(stderr=terminal.stderr, width=PLAIN_WIDTH, highlight=False)


def write_json(rows: Sequence[dict[str, Any]], path: Path | None) -> None:
    """Write `rows` as a list of objects to `path`, if there is one."""
    if path is None:
        return
    text = json.dumps(rows, indent=2, allow_nan=False)
    if path == STDOUT:
        typer.echo(text)
    else:
        path.write_text(f"{text}\n", encoding="utf-8")
