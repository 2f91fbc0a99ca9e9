"""What a worker and its gate say to each other: frames of a header and a body.

    offset  bytes  what
    0       4      "GWAF"
    4       1      version of the format, 1
    5       1      kind
    6       1      1 if the push before it counted, else 0
    7       1      0
    8       8      number: what it is depends on the kind
    16      8      length of the body
    24      4      CRC-32 of the bytes before it
    28      4      0
    32             the body

A header says how long the body is; nobody has to believe it before it was checked. Numbers are
little endian. Bodies are messages of `gw.encode`, which have checksums of their own, or text::

    worker to server                        number          body
    HELLO   may I join?                     0               digests of the layout, then a name
    PUSH    a gradient                      its weights     messages, one a section
    PULL    the newest weights, please      its weights
    BYE     this worker leaves              0
    server to worker
    WELCOME you may                         version         rank and seed, then all weights
    UPDATE  the way to the newest weights   version         a factor for each section, messages
    REFUSED and why                         0               text
    CLOSED  there is no more to do          version
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAGIC = b"GWAF"
FORMAT = 1
HEADER_NBYTES = 32
MAX_TEXT_NBYTES = 1024
MAX_NAME_NBYTES = 64
_HEADER = struct.Struct("<4sBBBxQQ")
_CRC = struct.Struct("<I4x")
WELCOME_START = struct.Struct("<IxxxxQ")
"""Rank, and the seed of keys."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    PUSH = 2
    PULL = 3
    BYE = 4
    WELCOME = 16
    UPDATE = 17
    REFUSED = 18
    CLOSED = 19


class FrameError(ValueError):
    """The bytes are no frame that may come now."""


@dataclass(frozen=True)
class Frame:
    """One of them, checked."""

    kind: Kind
    number: int = 0
    body: bytes | memoryview = b""
    counted: bool = False

    @property
    def nbytes(self) -> int:
        """Its size."""
        return HEADER_NBYTES + len(self.body)

    def pack(self) -> Tensor:
        """As it is sent."""
        room = torch.empty(self.nbytes, dtype=torch.uint8)
        view = _view(room)
        head = _HEADER.pack(MAGIC, FORMAT, self.kind, self.counted, self.number, len(self.body))
        view[:HEADER_NBYTES] = head + _CRC.pack(zlib.crc32(head))
        view[HEADER_NBYTES:] = self.body
        return room

    @classmethod
    def unpack(cls, room: Tensor, *allowed: Kind) -> Frame:
        """The frame at the start of `room`, if it is of an allowed kind. Its body is not copied."""
        view = _view(room)
        head = bytes(view[: _HEADER.size])
        magic, form, kind, counted, number, length = _HEADER.unpack(head)
        _require(magic == MAGIC, f"a frame starts with {MAGIC!r}, got {magic!r}.")
        _require(form == FORMAT, f"frames are of format {FORMAT} here, got {form}.")
        (crc,) = _CRC.unpack(view[_HEADER.size : HEADER_NBYTES])
        _require(crc == zlib.crc32(head), "the checksum of a header is wrong: it was damaged.")
        _require(kind in allowed, f"{_names(allowed)} may come now, got kind {kind}.")
        most = len(view) - HEADER_NBYTES
        _require(length <= most, f"a body has at most {most} bytes here, got {length}.")
        body = view[HEADER_NBYTES : HEADER_NBYTES + length]
        return cls(Kind(kind), number, body, bool(counted))

    def text(self, limit: int = MAX_TEXT_NBYTES) -> str:
        """The body, if it is words of another program: nothing in it may act on a terminal."""
        words = bytes(self.body[:limit]).decode("utf-8", "replace")
        return "".join(each if each.isprintable() else "?" for each in words)


def room_for(nbytes: int) -> Tensor:
    """Memory for a frame with a body of at most so many bytes."""
    return torch.from_numpy(np.zeros(HEADER_NBYTES + nbytes, np.uint8))


def _view(room: Tensor) -> memoryview:
    array: Any = room.numpy()
    return memoryview(array)


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise FrameError(sentence)


def _names(kinds: tuple[Kind, ...]) -> str:
    return " or ".join(kind.name for kind in kinds)
