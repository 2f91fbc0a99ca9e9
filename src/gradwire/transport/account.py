"""The account of what is sent over a link."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass


def ring_nbytes(nbytes: int, size: int) -> int:
    """What each of `size` workers sends for a ring all-reduce of `nbytes` bytes.

    >>> ring_nbytes(1000, size=4)
    1500
    """
    return 2 * (size - 1) * nbytes // size


@dataclass
class Account:
    """Totals since the link was made. Bytes are those this worker sends to others."""

    bytes_sent: int = 0
    message_bytes: int = 0
    values: int = 0
    encode_s: float = 0.0
    comm_s: float = 0.0
    decode_s: float = 0.0

    def __add__(self, other: Account) -> Account:
        """The totals of both."""
        return Account(*map(operator.add, astuple(self), astuple(other)))

    def message(self, values: int, nbytes: int) -> None:
        """Enter `values` values that this worker has put into `nbytes` bytes."""
        self.values += values
        self.message_bytes += nbytes

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to "encode", "comm" or "decode"."""
        start = time.perf_counter()
        try:
            yield
        finally:
            total = getattr(self, f"{stage}_s") + time.perf_counter() - start
            setattr(self, f"{stage}_s", total)
