"""What gradwire logs on a worker becomes an event of the lab."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gradwire.lab.records import Listener, Remark


class _Passing(logging.Handler):
    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        self._listener(Remark(record.getMessage()))


@contextmanager
def remarks_to(listener: Listener) -> Iterator[None]:
    """Let `listener` hear what gradwire logs in here; it does not go to standard error."""
    logger, handler = logging.getLogger("gradwire"), _Passing(listener)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
