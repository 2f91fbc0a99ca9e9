"""Where the results of a command go, and how it refuses.

Tables go to standard output, or to standard error if JSON takes standard output. What the user
got wrong is one sentence on standard error and exit code 2, before any work is done. Results are
never lost because one of their places cannot be written: see `deliver`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console, RenderableType

STDOUT = Path("-")
BAD_REQUEST = 2
FAILED = 1
PLAIN_WIDTH = 100
MAX_THREADS = 1024

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write the results as JSON; - is standard output."),
]


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a `ValueError` or `TypeError` about what the user typed into a sentence and exit 2.

    Wrap the checks in it, not the work: an error in there is ours and deserves its traceback.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        complain(str(error))
        raise typer.Exit(BAD_REQUEST) from None


def complain(sentence: str) -> None:
    """Say what is wrong on standard error, if anything can be said there."""
    try:
        typer.echo(f"Error: {sentence}", err=True)
    except OSError:
        discard(sys.stderr)


def check_at_least_one(**options: int) -> None:
    """Raise `ValueError` for the first option below 1."""
    for name, number in options.items():
        if number < 1:
            raise ValueError(f"`--{name}` must be at least 1, got {number}.")


def check_threads(threads: int) -> None:
    """Raise `ValueError` for a number of threads that no process should have."""
    check_at_least_one(threads=threads)
    if threads > MAX_THREADS:
        raise ValueError(f"`--threads` must be at most {MAX_THREADS}, got {threads}.")


def check_seed(seed: int) -> None:
    """Raise `ValueError` for what cannot be the seed of a `Key`."""
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"`--seed` must be from 0 to 2**64 - 1, got {seed}.")


def check_codecs(specs: Sequence[str], *, auto: bool = False) -> None:
    """Raise `ValueError` for the first spec that spells no codec, nor `auto` if that will do."""
    from gradwire.codecs import parse
    from gradwire.planner.auto.settings import as_auto

    for spec in specs:
        if not auto or as_auto(spec) is None:
            parse(spec)


def check_writable(path: Path | None) -> None:
    """Raise `ValueError` unless `path` can be written; the attempt changes nothing.

    A pipe is not opened: its reader would take the end of the attempt for the end of the results.
    """
    if path is None or path == STDOUT:
        return
    existed = path.exists()
    try:
        if not existed or path.is_file() or path.is_dir():
            path.open("a").close()
        if not existed:
            path.resolve().unlink()  # it may be a link to what was not there
    except OSError as error:
        raise ValueError(f"{path} {_cannot(error)}") from None


def counted(number: int, noun: str) -> str:
    """`number` and `noun`, in the plural unless there is one.

    >>> counted(1, "worker"), counted(2000, "step")
    ('1 worker', '2,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def console(json_file: Path | None = None, *, stderr: bool = False) -> Console:
    """A console for people; if it is no terminal, plain text of 100 columns, or of $COLUMNS."""
    terminal = Console(stderr=stderr or json_file == STDOUT)
    if terminal.is_terminal:
        return terminal
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else PLAIN_WIDTH
    return Console(stderr=terminal.stderr, width=width, highlight=False)


def deliver(
    rows: Sequence[dict[str, Any]],
    json_file: Path | None,
    *shown: RenderableType,
    files: Mapping[Path, Callable[[], object]] | None = None,
) -> None:
    """Show `shown`, write `rows` to `json_file` if there is one, then `files` by their functions.

    Each is tried whatever becomes of the others. If one fails and `rows` were written nowhere,
    they go to a temporary file. A reader of a pipe who has had enough is no failure.
    """
    text = json.dumps(rows, indent=2, allow_nan=False) + "\n"
    table = "standard error" if json_file == STDOUT else "standard output"
    places: dict[str, Callable[[], object]] = {table: partial(show, json_file, *shown)}
    if json_file is not None:
        places[_name(json_file)] = partial(_write, text, json_file)
    places |= {str(path): write for path, write in (files or {}).items()}
    errors = {place: error for place, write in places.items() if (error := _failure(write))}
    failed = {p: error for p, error in errors.items() if not isinstance(error, BrokenPipeError)}
    if failed:
        kept = json_file is not None and _name(json_file) not in errors
        where = f"The results are in {json_file}." if kept else _keep(text)
        complain(" ".join([*(f"{p} {_cannot(error)}" for p, error in failed.items()), where]))
    if errors:
        raise typer.Exit(FAILED)


def show(json_file: Path | None, *shown: RenderableType) -> None:
    """Print for people, where JSON leaves them room. Raises `OSError` if that cannot be."""
    out = console(json_file)
    with out.capture() as captured:
        out.print(*shown, sep="\n")
    _put(captured.get(), sys.stderr if out.stderr else sys.stdout)


def discard(stream: TextIO | None) -> None:
    """Let what `stream` still holds, and whatever follows, go nowhere instead of failing again."""
    with suppress(OSError, AttributeError):  # tests put other streams in its place
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # type: ignore[union-attr]


def _name(json_file: Path) -> str:
    return "standard output" if json_file == STDOUT else str(json_file)


def _cannot(error: OSError) -> str:
    return f"cannot be written: {error.strerror}."


def _failure(write: Callable[[], object]) -> OSError | None:
    try:
        write()
    except OSError as error:
        return error
    return None


def _write(text: str, json_file: Path) -> None:
    if json_file == STDOUT:
        _put(text, sys.stdout)
    else:
        json_file.write_text(text, encoding="utf-8")


def _put(text: str, stream: TextIO | None) -> None:
    try:
        if stream is None:
            raise OSError(0, "It is closed")
        stream.write(text)
        stream.flush()
    except OSError:
        discard(stream)
        raise


def _keep(text: str) -> str:
    """Write to a temporary file, and say so; if there is no room for one, say the text itself."""
    try:
        descriptor, path = tempfile.mkstemp(".json", "gradwire-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return f"Nor can a temporary file be, so these are the results:\n{text}"
    return f"The results are in {path}."
