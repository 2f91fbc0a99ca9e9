"""No compression, and the cheapest one: send float32, or round to 16 bits.

    Identity:  payload = x                      32 bits per value
    Cast:      payload = round16(x)             16 bits per value

`Cast` rounds to the nearest value, which is deterministic and so biased: by at most 2^-11 of
the value for float16, 2^-8 for bfloat16. Error feedback therefore is on by default.

The owner of a shard adds what all workers have sent of it, in the order of ranks and in float64,
and rounds the mean to float32 (`collectives.code_reduce`). Between two workers that is the result.
Among more, the owner of a `Cast` rounds the mean to 16 bits once more to send it, and nobody could
feed that error back: so it rounds up or down at random, with the mean as expectation. A network
that adds in 16 bits would round at every step of the ring, to the nearest, and lose for good what
is small beside the sum.

`Identity` is summed by the backend's own all-reduce unless you ask for `code_reduce`: the product
x * (1/n), the order of the sum and therefore every bit of the result are those of plain DDP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import NOTHING, Adder, NetworkAdder, SummableCodec
from gradwire.codecs.settings import SpelledCodec, check_size
from gradwire.kernels.formats.layout import TILE
from gradwire.key import Hop, Key

_PIECE = 1 << 16
_CAST_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Floats(SummableCodec):
    """A payload that is the vector itself, in `dtype_sent`."""

    unbiased = True

    @property
    def dtype_sent(self) -> torch.dtype:
        """What a payload is an array of."""
        return torch.float32

    def max_nbytes(self, numel: int) -> int:
        return numel * self.dtype_sent.itemsize

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        size = self.max_nbytes(x.numel())
        out[:size].view(self.dtype_sent).copy_(x)
        return size

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        check_size(payload, self.max_nbytes(out.numel()))
        values = payload.view(self.dtype_sent)
        if not accumulate:
            out.copy_(values)
            if weight != 1:
                out.mul_(weight)
            return
        piece = _PIECE if out.device.type == "cpu" else max(out.numel(), 1)
        pieces = zip(torch.split(out, piece), torch.split(values, piece), strict=True)
        for part, half in pieces:  # mixed types in one `add_` are slow
            if abs(weight) == 1:
                part.add_(half.float(), alpha=weight)  # bits: a product by 1 is exact
            else:
                part.add_(half.float() * weight)

    def adder(self, world: int, shared: Tensor = NOTHING) -> Adder:
        return FloatAdder(self, world)

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """For the codecs below, which users can name."""
        return {"values": payload.numel()}


class FloatAdder(Adder):
    """Codes are payloads, and the total is the mean: as a payload if it is sent, else float32."""

    def __init__(self, codec: Floats, world: int) -> None:
        self._codec = codec
        self._total_dtype = codec.dtype_sent if world > 2 else torch.float32
        self.in_turn = codec.dtype_sent == torch.float32

    def code_nbytes(self, numel: int) -> int:
        return self._codec.max_nbytes(numel)

    def total_nbytes(self, numel: int) -> int:
        return numel * self._total_dtype.itemsize

    def encode(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        self._codec.encode_into(x, out, key)

    def add(self, codes: Tensor, total: Tensor, numel: int, key: Key, offset: int = 0) -> None:
        """Write the mean, rounded at random if it is to be sent in 16 bits."""
        kernels.for_device(total.device).mean_floats(
            codes.view(self._codec.dtype_sent), total.view(self._total_dtype),
            key=key.of(rank=0, hop=Hop.TOTAL), offset=offset,
        )  # fmt: skip

    def decode(self, total: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        out.copy_(total.view(self._total_dtype))

    def subtract(self, code: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        self._codec.subtract(code, out, key)


@dataclass(frozen=True)
class Identity(Floats, SpelledCodec):
    """Every value as float32.

    >>> import gradwire as gw
    >>> gw.parse("none")
    Identity()
    """

    name = "none"
    collective = "all_reduce"

    def network_adder(self, world: int, shared: Tensor = NOTHING) -> NetworkAdder:
        return ShareAdder(world)


class ShareAdder(NetworkAdder):
    """A code is this worker's share of the mean, x * (1 / world), so the total is the mean."""

    dtype = torch.float32

    def __init__(self, world: int) -> None:
        self._world = world

    def code_nbytes(self, numel: int) -> int:
        return 4 * numel

    def encode(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        torch.mul(x.float(), 1.0 / self._world, out=out.view(torch.float32))

    def decode(self, total: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        out.copy_(total.view(torch.float32))

    def subtract(self, code: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        weight = -float(self._world)
        Floats().decode_into(code, out, key, weight=weight, accumulate=True)


@dataclass(frozen=True)
class Cast(Floats, SpelledCodec):
    """Every value rounded to 16 bits: `dtype` is "fp16" or "bf16".

    >>> import torch, gradwire as gw
    >>> codec = gw.parse("bf16")
    >>> codec.decode(codec.encode(torch.tensor([1 / 3]), gw.Key()), 1, gw.Key())
    tensor([0.3340])
    """

    dtype: str = "fp16"

    unbiased = False
    grain = TILE  # random bits are drawn by tiles

    def __post_init__(self) -> None:
        if self.dtype not in _CAST_DTYPES:
            raise ValueError(f'`dtype` of Cast must be "fp16" or "bf16", got {self.dtype!r}.')

    @property
    def name(self) -> str:
        """The spec name is the type."""
        return self.dtype

    @property
    def dtype_sent(self) -> torch.dtype:
        return _CAST_DTYPES[self.dtype]

    def settings(self) -> dict[str, Any]:
        """None: the name says it all."""
        return {}
