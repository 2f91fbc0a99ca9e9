"""The header of a message, and where the rest is. All of it is little-endian::

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

A header has one form: what `pack` would not write is refused.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch

from gradwire.key import Key

MAGIC = b"GRDW"
VERSION = 1
MAX_DIMS = 32
MAX_SPEC_NBYTES = 255
CHECKSUM_NBYTES = 4
MAX_HEADER_NBYTES = 552

_FIXED = struct.Struct("<4sBBBBQQIII")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LEAST_NBYTES = _FIXED.size + 4 + CHECKSUM_NBYTES


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
        require(
            len(message) >= _LEAST_NBYTES,
            f"a message has at least {_LEAST_NBYTES} bytes, got {len(message)}.",
        )
        magic, version, dtype, ndim, length, payload, *key = _FIXED.unpack_from(message)
        require(magic == MAGIC, f"a message starts with {MAGIC!r}, got {magic!r}.")
        require(
            version == VERSION,
            f"this gradwire reads version {VERSION} of the format, got version {version}; "
            "use the release that wrote the message.",
        )
        require(dtype < len(_DTYPES), f"dtypes are 0 to {len(_DTYPES) - 1}, got {dtype}.")
        require(ndim <= MAX_DIMS, f"there are at most {MAX_DIMS} dimensions, got {ndim}.")
        start = _FIXED.size + 8 * ndim
        require(length > 0, "the header names no codec.")
        require(len(message) >= start + length, "the message ends within its header.")
        shape = struct.unpack_from(f"<{ndim}Q", message, _FIXED.size)
        spec = _text(message[start : start + length])
        header = cls(spec, shape, _DTYPES[dtype], _key(*key), payload)
        header._check(message)
        return header

    def _check(self, message: memoryview) -> None:
        """Refuse a shape that torch has no strides for, and a header that `pack` does not write."""
        size = math.prod(max(dim, 1) for dim in self.shape)
        require(size < 1 << 63, f"no tensor has the shape {self.shape}.")
        require(
            message[: self.nbytes] == self.pack(),
            "the header is cut short, or padded with other bytes than zeros.",
        )


def require(condition: bool, sentence: str) -> None:
    """Raise a `WireError` unless the message is as it has to be."""
    if not condition:
        raise WireError(sentence)


def _key(seed: int, step: int, tensor: int, rank_and_hop: int) -> Key:
    return Key(seed, step, tensor, rank_and_hop & 0xFFFFFF, rank_and_hop >> 24)


def _text(spec: memoryview) -> str:
    try:
        return str(spec, "utf-8")
    except UnicodeDecodeError:
        raise WireError(f"the codec's spec is not UTF-8: {bytes(spec)!r}.") from None
