"""Self-describing messages: `encode` to bytes, `decode` from nothing but those bytes.

A message is a header (`header.py`), the payload of one codec and a checksum.

What a message says is checked before anything of its size is allocated, and the checksum before
the codec sees a byte. The checksum finds accidents; it does not stop an attacker, who can compute
it too. So nothing that passes it is trusted either: a hostile message gives a `WireError`, or a
tensor of the shape it announces. docs/wire.md has what a decoder in another language needs.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradwire import scratch
from gradwire.codec import Codec, check_input
from gradwire.codecs import as_codec, parse
from gradwire.key import Key
from gradwire.scratch import Scratch
from gradwire.wire.header import (
    CHECKSUM_NBYTES,
    MAX_DIMS,
    MAX_HEADER_NBYTES,
    MAX_SPEC_NBYTES,
    VERSION,
    Header,
    WireError,
)
from gradwire.wire.message import Bytes, Message, check_stands_alone, crc

__all__ = [
    "CHECKSUM_NBYTES",
    "MAX_HEADER_NBYTES",
    "VERSION",
    "Header",
    "Message",
    "WireError",
    "decode",
    "encode",
]

_FIRST_KEY = Key()


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
    check_stands_alone(codec)
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
    message[-CHECKSUM_NBYTES:] = crc(message[:-CHECKSUM_NBYTES])
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
    gradwire.wire.header.WireError: a message has at least 44 bytes, got 20.
    """
    return Message.read(message, max_numel=max_numel).values()


def _spec(codec: Codec) -> str:
    """The spelling of `codec`, which must lead back to it, or nobody could decode the message."""
    spec = str(codec)
    if len(spec.encode()) > MAX_SPEC_NBYTES:
        raise ValueError(f"a codec's spec has at most {MAX_SPEC_NBYTES} bytes, got {spec!r}.")
    if parse(spec) != codec:
        raise ValueError(f"`parse({spec!r})` is not {codec!r}; a message could not be decoded.")
    return spec
