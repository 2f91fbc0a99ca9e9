"""The first 8 bytes of a spectrum: what is kept of a block, in which domain, and how places lie."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.gaps import MAX_RICE

_HEAD = struct.Struct("<IBBBB")
HEAD_NBYTES = _HEAD.size
PLACES = ("places", "bitmap", "gaps")
ALL, BITMAP, GAPS = range(3)


class Head(NamedTuple):
    """How many are `kept` of a whole block, the domain, the form of the places, and `rice`."""

    kept: int
    domain: int
    placed: int
    rice: int

    def write(self, out: Tensor) -> None:
        """Write it to the start of `out`. A GPU gets it as a number, which it need not wait for."""
        if out.device.type == "cpu":
            out[:HEAD_NBYTES] = torch.frombuffer(bytearray(self._pack()), dtype=torch.uint8)
        else:
            out[:HEAD_NBYTES].view(torch.int64).fill_(self._number)

    def is_of(self, payload: Tensor) -> Tensor:
        """Does `payload`, which is on a GPU, begin with it? The answer stays there."""
        return payload[:HEAD_NBYTES].view(torch.int64) == self._number

    def _pack(self) -> bytes:
        return _HEAD.pack(*self, 0)

    @property
    def _number(self) -> int:
        return int.from_bytes(self._pack(), "little")


def read_head(payload: Tensor, block: int, *, has_gaps: bool) -> Head:
    """That of a payload on the CPU; ValueError if no encoder writes it."""
    check_head_size(payload)
    *fields, zero = _HEAD.unpack(payload[:HEAD_NBYTES].numpy().tobytes())
    head = Head(*fields)
    if not 1 <= head.kept <= block:
        raise ValueError("the head is damaged: it promises more coefficients than there are.")
    placed = head.placed
    fits = (placed == ALL) == (head.kept == block) and placed <= BITMAP + has_gaps
    if head.domain > 2 or not fits or head.rice > (MAX_RICE if placed == GAPS else 0) or zero:
        raise ValueError("the head is damaged: it names no domain or form that there is.")
    return head


def check_head_size(payload: Tensor) -> None:
    """Refuse what is shorter than a head."""
    if payload.numel() < HEAD_NBYTES:
        raise ValueError(
            f"the payload has {payload.numel()} bytes, expected {HEAD_NBYTES} or more."
        )
