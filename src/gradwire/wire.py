"""Self-describing messages: `encode` to bytes, `decode` from nothing but those bytes.

A message is a header, the payload of one codec and a checksum, all little-endian::

    offset  bytes  field
    0       4      magic, "GRDW"
    4       1      version, 1
    5       1      dtype of the tensor: 0 float32, 1 float16, 2 bfloat16
    6       1      number of dimensions n, at most 32
    7       1      length m of the codec's spec, at least 1
    8       8      length p of the payload
    16      8      seed of the key
    24      4      step of the key
    28      4      tensor of the key
    32      4      rank of the key in the low 24 bits, hop in the high 8
    36      8 n    the dimensions
            m      the spec, as `str(codec)` spells it, in UTF-8
                   zeros up to h, the next multiple of 8
    h       p      the payload
    h + p   4      CRC-32 of all bytes before it

What a message says is checked before anything of its size is allocated, and the checksum before
the codec sees a byte. The checksum finds accidents; it does not stop an attacker, who can compute
it too. So nothing that passes it is trusted either: a hostile message gives a `WireError`, or a
tensor of the shape it announces. docs/wire.md has what a decoder in another language needs.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire import scratch
from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec, check_input
from gradwire.codecs import as_codec, parse
from gradwire.codecs.settings import SpelledCodec
from gradwire.key import Key
from gradwire.scratch import Scratch

Bytes = bytes | bytearray | memoryview

MAGIC = b"GRDW"
VERSION = 1
MAX_DIMS = 32
MAX_SPEC_NBYTES = 255
CHECKSUM_NBYTES = 4
MAX_HEADER_NBYTES = 552
SPARSE_MAX_NUMEL = 1 << 26
"""Default limit for messages of less than a bit a value: 256 MiB, dear to no machine."""

_FIXED = struct.Struct("<4sBBBBQQIII")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LEAST_NBYTES = _FIXED.size + 4 + CHECKSUM_NBYTES
_FIRST_KEY = Key()
_REFUSALS = (ValueError, TypeError, ArithmeticError, MemoryError, RuntimeError)
"""What a codec may raise over settings or a payload it cannot take; torch's out of memory too."""


class WireError(ValueError):
    """The bytes are not one whole message that this version can decode."""


@dataclass(frozen=True)
class Header:
    """All of a message but its payload."""

    spec: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    key: Key
    payload_nbytes: int

    @property
    def numel(self) -> int:
        """How many values the message holds."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the header, a multiple of 8, so that payloads are aligned."""
        return -(-(_FIXED.size + 8 * len(self.shape) + len(self.spec.encode())) // 8) * 8

    @property
    def message_nbytes(self) -> int:
        """Size of the whole message."""
        return self.nbytes + self.payload_nbytes + CHECKSUM_NBYTES

    def pack(self) -> bytes:
        """The header as it lies in a message."""
        key, spec = self.key, self.spec.encode()
        fixed = _FIXED.pack(
            MAGIC, VERSION, _DTYPES.index(self.dtype), len(self.shape), len(spec),
            self.payload_nbytes, key.seed, key.step, key.tensor, key.rank | key.hop << 24,
        )  # fmt: skip
        dims = struct.pack(f"<{len(self.shape)}Q", *self.shape)
        return (fixed + dims + spec).ljust(self.nbytes, b"\0")

    @classmethod
    def unpack(cls, message: memoryview) -> Header:
        """The header at the start of `message`, of which the rest may be missing."""
        _require(
            len(message) >= _LEAST_NBYTES,
            f"a message has at least {_LEAST_NBYTES} bytes, got {len(message)}.",
        )
        magic, version, dtype, ndim, length, payload, *key = _FIXED.unpack_from(message)
        _require(magic == MAGIC, f"a message starts with {MAGIC!r}, got {magic!r}.")
        _require(
            version == VERSION,
            f"this gradwire reads version {VERSION} of the format, got version {version}; "
            "use the release that wrote the message.",
        )
        _require(dtype < len(_DTYPES), f"dtypes are 0 to {len(_DTYPES) - 1}, got {dtype}.")
        _require(ndim <= MAX_DIMS, f"there are at most {MAX_DIMS} dimensions, got {ndim}.")
        start = _FIXED.size + 8 * ndim
        _require(length > 0, "the header names no codec.")
        _require(len(message) >= start + length, "the message ends within its header.")
        shape = struct.unpack_from(f"<{ndim}Q", message, _FIXED.size)
        spec = _text(message[start : start + length])
        header = cls(spec, shape, _DTYPES[dtype], _key(*key), payload)
        header._check(message)
        return header

    def _check(self, message: memoryview) -> None:
        """Refuse a shape that torch has no strides for, and a header that `pack` does not write."""
        size = math.prod(max(dim, 1) for dim in self.shape)
        _require(size < 1 << 63, f"no tensor has the shape {self.shape}.")
        _require(
            message[: self.nbytes] == self.pack(),
            "the header is cut short, or padded with other bytes than zeros.",
        )


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
        _require(
            len(view) == header.message_nbytes,
            f"the header promises {header.message_nbytes} bytes in all, got {len(view)}; "
            "the message was cut short, or something was added.",
        )
        body, checksum = view[:-CHECKSUM_NBYTES], view[-CHECKSUM_NBYTES:]
        _require(_crc(body) == checksum, "the checksum is wrong: the message was damaged.")
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


def encode(codec: Codec | str, x: Tensor, key: Key = _FIRST_KEY) -> bytes:
    """One message that holds `x`, of any shape, as `codec` has it with the randomness of `key`.

    `codec` may be its spec, such as ``"qsgd:bits=4"``. One that learns, `GradiVeQ` or
    `PowerSGD`, is refused: a message is on its own, with nothing before it to learn from.

    The same codec, tensor and key give the same bytes on every machine (zstd's may change with
    its release). Header and checksum of a matrix and an everyday codec take 68 bytes.

    >>> import torch, gradwire as gw
    >>> message = gw.encode(gw.QSGD(bits=4), torch.ones(100, 50), gw.Key(seed=0, step=7, rank=1))
    >>> len(message), 100 * 50 * 4
    (2608, 20000)
    """
    codec = as_codec(codec)
    _check_stands_alone(codec)
    if not isinstance(x, Tensor):
        raise TypeError(f"`x` must be a tensor, got {type(x).__name__}; use `torch.as_tensor(x)`.")
    check_input(x)
    if x.ndim > MAX_DIMS:
        raise ValueError(f"a message has at most {MAX_DIMS} dimensions, got {x.ndim}; reshape it.")
    header = Header(_spec(codec), tuple(x.shape), x.dtype, key, 0)
    flat = x.detach().cpu().reshape(-1).contiguous()
    start = header.nbytes
    room = torch.empty(start + codec.max_nbytes(flat.numel()) + CHECKSUM_NBYTES, dtype=torch.uint8)
    with scratch.using(Scratch()):
        size = codec.encode_into(flat, room[start:-CHECKSUM_NBYTES], key)
    header = replace(header, payload_nbytes=size)
    message = room.numpy().data[: header.message_nbytes]
    message[:start] = header.pack()
    message[-CHECKSUM_NBYTES:] = _crc(message[:-CHECKSUM_NBYTES])
    return bytes(message)


def decode(message: Bytes, *, max_numel: int | None = None) -> Tensor:
    """The tensor that `message` (bytes, bytearray or memoryview) holds, on the CPU.

    Raises `WireError` with a sentence if it is not one whole message. A few bytes may stand for
    many zeros, so a message of more than `max_numel` values is refused. By default it may have 8
    for each of its bytes, which fixed-width codes never exceed, and 2**26 in any case.

    >>> import torch, gradwire as gw
    >>> message = gw.encode(gw.parse("fp16"), torch.tensor([[1.0, 0.1]]))
    >>> gw.decode(message)
    tensor([[1.0000, 0.1000]])
    >>> gw.decode(message[:20])
    Traceback (most recent call last):
    gradwire.wire.WireError: a message has at least 44 bytes, got 20.
    """
    return Message.read(message, max_numel=max_numel).values()


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise WireError(sentence)


def _view(message: Bytes) -> memoryview:
    view = memoryview(message)
    return view.cast("B") if view.c_contiguous and view.nbytes else memoryview(bytes(view))


def _crc(body: memoryview) -> bytes:
    return zlib.crc32(body).to_bytes(CHECKSUM_NBYTES, "little")


def _key(seed: int, step: int, tensor: int, rank_and_hop: int) -> Key:
    return Key(seed, step, tensor, rank_and_hop & 0xFFFFFF, rank_and_hop >> 24)


def _text(spec: memoryview) -> str:
    try:
        return str(spec, "utf-8")
    except UnicodeDecodeError:
        raise WireError(f"the codec's spec is not UTF-8: {bytes(spec)!r}.") from None


def _spec(codec: Codec) -> str:
    """The spelling of `codec`, which must lead back to it, or nobody could decode the message."""
    spec = str(codec)
    if len(spec.encode()) > MAX_SPEC_NBYTES:
        raise ValueError(f"a codec's spec has at most {MAX_SPEC_NBYTES} bytes, got {spec!r}.")
    if parse(spec) != codec:
        raise ValueError(f"`parse({spec!r})` is not {codec!r}; a message could not be decoded.")
    return spec


def _check_stands_alone(codec: Codec) -> None:
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
        _check_stands_alone(codec)
    except _REFUSALS as error:
        raise WireError(f"the message needs a codec that is not here: {error}") from error
    spelled = str(codec)
    _require(spelled == spec, f"the codec is spelled {spelled!r}, got {spec!r}.")
    return codec


def _check_numel(header: Header, max_numel: int | None) -> None:
    paid = max(SPARSE_MAX_NUMEL, 8 * header.message_nbytes)
    limit = paid if max_numel is None else max_numel
    _require(
        header.numel <= limit,
        f"a message of {header.message_nbytes} bytes may hold up to {limit} values here, got "
        f"{header.numel}; pass a larger `max_numel` if you trust it.",
    )


def _check_payload_size(header: Header, codec: Codec) -> None:
    most, got = codec.max_nbytes(header.numel), header.payload_nbytes
    bound = "" if codec.fixed_size else "at most "
    _require(
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
