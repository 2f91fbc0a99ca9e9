"""Ctrl-C: a command ends in silence, with the exit code that a shell gives it.

At first it ends at once. There is nothing to clean up while modules are imported, and some of them
turn an interrupt into errors of their own. Work that has something to clean up is wrapped in
`interruptible`. This module imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130  # 128 + SIGINT


def exit_at_once() -> None:
    """Let Ctrl-C end the process, unless it is ignored, as `nohup` has it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` in here, and then end the command."""
    import typer

    handler = signal.getsignal(signal.SIGINT)
    try:
        if handler is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, handler)
