"""What a gate and its server say to each other, in one machine: notes, and vectors in memory.

Notes are of a fixed form, so that even a gate that a worker has taken over could not make the
server run anything.
"""

from __future__ import annotations

import mmap
import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

import torch

_NOTE = struct.Struct("<BBxxIQQQ")
_VECTORS = 3


class Topic(IntEnum):
    """What a note is about."""

    JOINED = 1  # a worker is there; text: its name
    PUSH = 2  # its gradient is in memory; number: the version of its weights
    PULL = 3  # it wants new weights
    LEFT = 4  # it said goodbye
    LOST = 5  # its connection ended; text: how
    REFUSED = 6  # it sent what it may not; text: what
    START = 16  # of the server: what the gate is for; text: JSON
    CURRENT = 17  # weights are in memory; number: their version
    CLOSED = 18  # the server needs no more


@dataclass(frozen=True)
class Note:
    """One note. `received` and `sent` are bytes that a gate has moved since its last one."""

    topic: Topic
    number: int = 0
    counted: bool = False
    text: str = ""
    received: int = 0
    sent: int = 0


class Channel:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """For those who wait for notes."""
        return self._end.fileno()

    def send(self, note: Note) -> None:
        """Say something; raises `OSError` if nobody is there."""
        text = note.text.encode()
        head = _NOTE.pack(
            note.topic, note.counted, len(text), note.number, note.received, note.sent
        )
        self._end.sendall(head + text)

    def receive(self) -> Note | None:
        """Wait for a note; None if the other side is gone."""
        head = self._exactly(_NOTE.size)
        if head is None:
            return None
        topic, counted, length, number, received, sent = _NOTE.unpack(head)
        text = self._exactly(length)
        if text is None:
            return None
        return Note(Topic(topic), number, bool(counted), text.decode(), received, sent)

    def close(self) -> None:
        """Hang up."""
        self._end.close()

    def _exactly(self, count: int) -> bytes | None:
        found = bytearray()
        while len(found) < count:
            try:
                more = self._end.recv(count - len(found))
            except ConnectionError:
                return None
            if not more:
                return None
            found += more
        return bytes(found)


class Memory:
    """Vectors that a gate and its server both see.

    gradient: what the worker has pushed.
    weights: those of the server when it last answered.
    held: those that the worker has, to the bit.
    """

    def __init__(self, file: int, numel: int) -> None:
        mapped = mmap.mmap(file, self.nbytes(numel))
        vectors = torch.frombuffer(mapped, dtype=torch.float32)
        self.gradient, self.weights, self.held = torch.split(vectors, numel)

    @staticmethod
    def nbytes(numel: int) -> int:
        """Size of the file."""
        return 4 * _VECTORS * numel
