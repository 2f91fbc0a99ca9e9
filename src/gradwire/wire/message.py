"""A message that was read: what is checked before its payload is looked at, and after."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire import scratch
from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec
from gradwire.codecs import parse
from gradwire.codecs.settings import SpelledCodec
from gradwire.scratch import Scratch
from gradwire.wire.header import CHECKSUM_NBYTES, Header, WireError, require

Bytes = bytes | bytearray | memoryview

SPARSE_MAX_NUMEL = 1 << 26
"""Default limit for messages of less than a bit a value: 256 MiB, dear to no machine."""

_REFUSALS = (ValueError, TypeError, ArithmeticError, MemoryError, RuntimeError)
"""What a codec may raise over settings or a payload it cannot take; torch's out of memory too."""


@dataclass(frozen=True)
class Message:
    """A message that is whole: header, codec and sizes agree, and so does the checksum."""

    header: Header
    codec: SpelledCodec
    payload: memoryview

    @classmethod
    def read(cls, message: Bytes, *, max_numel: int | None = None) -> Message:
        """Check everything but the inside of the payload; see `decode` for `max_numel`."""
        view = _view(message)
        header = Header.unpack(view)
        require(
            len(view) == header.message_nbytes,
            f"the header promises {header.message_nbytes} bytes in all, got {len(view)}; "
            "the message was cut short, or something was added.",
        )
        body, checksum = view[:-CHECKSUM_NBYTES], view[-CHECKSUM_NBYTES:]
        require(crc(body) == checksum, "the checksum is wrong: the message was damaged.")
        codec = _codec(header.spec)
        _check_numel(header, max_numel)
        _check_payload_size(header, codec)
        return cls(header, codec, body[header.nbytes :])

    def values(self) -> Tensor:
        """The tensor that it holds; see `decode`."""
        header = self.header
        try:
            dtype = header.dtype if self.codec.keeps_bits else torch.float32
            out = torch.empty(header.numel, dtype=dtype)
            with scratch.using(Scratch()):
                self.codec.decode_into(_tensor(self.payload), out, header.key)
            return out.to(header.dtype).reshape(header.shape)
        except _REFUSALS as error:
            raise WireError(
                f"the {header.numel} values of the message cannot be decoded: "
                f"{str(error) or 'out of memory'}"
            ) from error

    def anatomy(self) -> dict[str, int]:
        """The bytes of each part of the message, in their order."""
        try:
            inside = self.codec.anatomy(_tensor(self.payload), self.header.numel)
        except _REFUSALS as error:
            raise WireError(f"the payload does not have its parts: {error}") from error
        return {"header": self.header.nbytes, **inside, "checksum": CHECKSUM_NBYTES}


def _view(message: Bytes) -> memoryview:
    view = memoryview(message)
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(bytes(view))


def crc(body: memoryview) -> bytes:
    """The checksum of a message."""
    return zlib.crc32(body).to_bytes(CHECKSUM_NBYTES, "little")


def check_stands_alone(codec: Codec) -> None:
    """Refuse a codec that has to know of earlier vectors."""
    if isinstance(codec, AdaptiveCodec) and not codec.stands_alone:
        raise ValueError(
            f"{codec} learns from the gradients of earlier steps, and a message has none: it could "
            "not be compressed. Use it with `attach`; for messages `dqsg:bits_per_value=2.0` or "
            "`qsgd:bits=4` are good."
        )


def _codec(spec: str) -> SpelledCodec:
    """The codec of a message, which has one spelling only."""
    try:
        codec = parse(spec)
        check_stands_alone(codec)
    except _REFUSALS as error:
        raise WireError(f"the message needs a codec that is not here: {error}") from error
    spelled = str(codec)
    require(spelled == spec, f"the codec is spelled {spelled!r}, got {spec!r}.")
    return codec


def _check_numel(header: Header, max_numel: int | None) -> None:
    paid = max(SPARSE_MAX_NUMEL, 8 * header.message_nbytes)
    limit = paid if max_numel is None else max_numel
    require(
        header.numel <= limit,
        f"a message of {header.message_nbytes} bytes may hold up to {limit} values here, got "
        f"{header.numel}; pass a larger `max_numel` if you trust it.",
    )


def _check_payload_size(header: Header, codec: Codec) -> None:
    most, got = codec.max_nbytes(header.numel), header.payload_nbytes
    bound = "" if codec.fixed_size else "at most "
    require(
        got <= most if bound else got == most,
        f"{header.numel} values of {header.spec} take {bound}{most} bytes, got {got}.",
    )


class _Unlocked:
    """Read-only memory that numpy takes for writable, because torch has no read-only tensors.

    The alternatives are a copy, or a warning at every user's first message. Codecs leave their
    payload alone.
    """

    def __init__(self, view: memoryview) -> None:
        self.owner = np.frombuffer(view, np.uint8)
        self.__array_interface__: dict[str, Any] = {
            **self.owner.__array_interface__,
            "data": (self.owner.__array_interface__["data"][0], False),
        }


def _tensor(payload: memoryview) -> Tensor:
    """The bytes in place; a copy only where the message itself lies at an odd address."""
    tensor = torch.from_numpy(np.asarray(_Unlocked(payload)))
    return tensor.clone() if tensor.data_ptr() % 8 else tensor
