"""What becomes of a case that raises, hangs or cannot be run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradwire.codec import Codec
from gradwire.lab.selftest.records import Checked, Failure, Say
from gradwire.reduction.rehearsal import check_sizes
from gradwire.transport.gpu import Here

PATIENCE_S = 900.0
"""For one kernel, or one codec: a GPU kernel may take half a minute to compile."""


def said_of(error: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def in_time(subject: str, rank: int, say: Say) -> Iterator[None]:
    """Be done in here after `PATIENCE_S`, or the worker says so and ends."""

    def give_up() -> None:
        what = f"worker {rank} was not done after {PATIENCE_S:g} s"
        say(Checked(subject, rank, 1, (Failure(subject, what),)))
        os._exit(1)

    timer = threading.Timer(PATIENCE_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_refusal(error: Exception, codec: Codec, device: torch.device) -> bool:
    """Does gradwire say that a codec is not for this device? All are for CPUs.

    It lacks a kernel there, or over NCCL sizes that differ, which workers would have to wait for.
    """
    if device.type == "cpu":
        return False
    return isinstance(error, NotImplementedError) or str(error) == _refusal(codec, device)


def _refusal(codec: Codec, device: torch.device) -> str | None:
    """What is said of a codec whose payloads differ in size."""
    try:
        check_sizes(codec, Here(device))
    except ValueError as refused:
        return str(refused)
    except NotImplementedError:  # which `is_refusal` has seen to
        return None
    return None
