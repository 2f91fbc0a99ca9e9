"""What a server has done so far, in numbers and by worker."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum

from gradwire.algorithms.asynchronous.channel import Note
from gradwire.algorithms.asynchronous.descent import Descent

_logger = logging.getLogger(__name__)

KEPT_RECORDS = 1000


class State(str, Enum):
    """What became of a worker."""

    JOINING = "joining"
    CONNECTED = "connected"
    LEFT = "left"  # said goodbye, or was told that there is no more to do
    LOST = "lost"  # died, or was silent for too long
    REFUSED = "refused"  # sent what it may not


@dataclass
class WorkerRecord:
    """One worker, since it joined; one that joins again is another one.

    counted, stale: gradients of it that made a step, and that were too late to.
    bytes_received, bytes_sent: by the server, from and to it.
    reason: why it is gone, in words.
    """

    rank: int
    name: str = "?"
    state: State = State.JOINING
    counted: int = 0
    stale: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    reason: str = ""


@dataclass(frozen=True)
class ServerStats:
    """A server since it was started.

    version: steps that the model has made, those before a checkpoint too.
    delays: how many gradients that counted were so late, by delay, as far back as `version`.
    usual_delay: the mean of the last hundred or so.
    workers: the newest thousand, also those that are gone.
    """

    version: int
    delays: dict[int, int]
    usual_delay: float
    counted: int
    stale: int
    refused: int
    bytes_received: int
    bytes_sent: int
    workers: tuple[WorkerRecord, ...]


class Ledger:
    """Keeps the records, and tells the log who comes and goes."""

    def __init__(self) -> None:
        self._records: deque[WorkerRecord] = deque(maxlen=KEPT_RECORDS)
        self._totals = WorkerRecord(0)
        self._refused = 0

    def open(self, rank: int) -> WorkerRecord:
        """A record for somebody who wants to join."""
        self._records.append(WorkerRecord(rank))
        return self._records[-1]

    def joined(self, record: WorkerRecord, name: str, version: int) -> None:
        """It has."""
        record.name, record.state = name, State.CONNECTED
        _logger.info("worker %d (%s) joined at version %d", record.rank, name, version)

    def moved(self, record: WorkerRecord, note: Note) -> None:
        """Bytes went to and fro."""
        for each in (record, self._totals):
            each.bytes_received += note.received
            each.bytes_sent += note.sent

    def pushed(self, record: WorkerRecord, *, counted: bool) -> None:
        """A gradient came."""
        for each in (record, self._totals):
            each.counted += counted
            each.stale += not counted

    def ended(self, record: WorkerRecord, state: State, reason: str) -> None:
        """It is gone."""
        record.state, record.reason = state, reason
        self._refused += state is State.REFUSED
        say = _logger.warning if state is State.REFUSED else _logger.info
        say("worker %d (%s) %s: %s", record.rank, record.name, state.value, reason or "goodbye")

    def stats(self, descent: Descent) -> ServerStats:
        """All of it."""
        totals = self._totals
        return ServerStats(
            version=descent.version,
            delays=dict(sorted(descent.delays.items())),
            usual_delay=descent.usual.mean,
            counted=totals.counted,
            stale=totals.stale,
            refused=self._refused,
            bytes_received=totals.bytes_received,
            bytes_sent=totals.bytes_sent,
            workers=tuple(replace(each) for each in self._records),
        )
