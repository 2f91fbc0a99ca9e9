"""`gradwire inspect`: what a message says of itself, and what its bits are spent on."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from gradwire.terminal.output import (
    FAILED,
    JsonFile,
    check_writable,
    complain,
    counted,
    deliver,
    refusing,
)

if TYPE_CHECKING:
    from gradwire.wire import Message

STDIN = Path("-")
ANY_NUMEL = 1 << 63


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A message; - is standard input.")],
    json_file: JsonFile = None,
) -> None:
    """Print the header of a message and what its bits are spent on. Its values are not decoded.

    Example: what do 4 bits per value really cost? In Python, keep a message in a file:

        import pathlib, torch, gradwire as gw

        pathlib.Path("x.gw").write_bytes(gw.encode("qsgd:bits=4", torch.randn(1000)))

    Then look into it:

        gradwire inspect x.gw

    The exit code is 1 if FILE is not a whole message, and 2 if it cannot be read.
    """
    with refusing():
        check_writable(json_file)
        data = _read(file)
    from gradwire.wire import Message, WireError

    try:
        described = describe(Message.read(data, max_numel=ANY_NUMEL))
    except WireError as error:
        complain(f"{_name(file)} is not a whole message: {error}")
        raise typer.Exit(FAILED) from None
    deliver([described], json_file, facts(described), "", budget(described))


def _name(file: Path) -> str:
    return "standard input" if file == STDIN else str(file)


def _read(file: Path) -> bytes:
    """All of `file`, or only its start if no message starts like that."""
    try:
        if file == STDIN:
            if sys.stdin is None:
                raise ValueError("standard input cannot be read: it is closed.")
            return _read_message(sys.stdin.buffer)
        with file.open("rb") as stream:
            return _read_message(stream)
    except OSError as error:
        raise ValueError(f"{_name(file)} cannot be read: {error.strerror}.") from None


def _read_message(stream: IO[bytes]) -> bytes:
    from gradwire.wire import MAX_HEADER_NBYTES, Header, WireError

    head = stream.read(MAX_HEADER_NBYTES)
    try:
        Header.unpack(memoryview(head))
    except WireError:
        return head
    return head + stream.read()


def describe(message: Message) -> dict[str, Any]:
    """What there is to say about a message, ready for JSON.

    >>> import torch, gradwire as gw
    >>> from gradwire.wire import Message
    >>> message = gw.encode("qsgd:bits=4", torch.ones(1000), gw.Key(step=7))
    >>> describe(Message.read(message))["bytes"]
    {'header': 56, 'scales': 8, 'codes': 500, 'checksum': 4, 'total': 568}
    """
    from gradwire.wire import VERSION

    header = message.header
    parts = message.anatomy()
    parts["total"] = sum(parts.values())
    return {
        "version": VERSION,
        "codec": str(message.codec),
        "shape": list(header.shape),
        "numel": header.numel,
        "dtype": str(header.dtype).removeprefix("torch."),
        "key": asdict(header.key),
        "checksum": "ok",
        "bytes": parts,
        "bits_per_value": {name: _per(8 * size, header.numel) for name, size in parts.items()},
        "ratio": _per(parts["total"], 4 * header.numel),
    }


def _per(amount: int, count: int) -> float | None:
    return amount / count if count else None


def facts(described: dict[str, Any]) -> Table:
    """What the header says, one fact a line."""
    shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    shown.add_column(no_wrap=True, style="bold")
    shown.add_column(overflow="fold")
    shape = " x ".join(str(dim) for dim in described["shape"]) or "scalar"
    shown.add_row("codec", described["codec"])
    shown.add_row("shape", f"{shape} ({counted(described['numel'], 'value')})")
    shown.add_row("dtype", described["dtype"])
    shown.add_row("key", ", ".join(f"{name}={v}" for name, v in described["key"].items()))
    shown.add_row("format", f"version {described['version']}, checksum {described['checksum']}")
    return shown


def budget(described: dict[str, Any]) -> Table:
    """What each part of the message costs."""
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    shown.add_column("")
    for head in ("bytes", "bits/value", "of float32"):
        shown.add_column(head, justify="right", no_wrap=True)
    for name, size in described["bytes"].items():
        ratio = _per(size, 4 * described["numel"])
        bits = described["bits_per_value"][name]
        shown.add_row(
            name,
            f"{size:,}",
            "-" if bits is None else f"{bits:.3f}",
            "-" if ratio is None else f"{ratio:.4f}",
            style="bold" if name == "total" else "",
        )
    return shown
