"""No compression, and the cheapest one: send float32, or round to 16 bits.

    Identity:  payload = x                      32 bits a value
    Cast:      payload = round16(x)             16 bits a value

Both are linear, so the network sums them. Among n workers each sends x / n, not x: a sum of n
gradients overflows float16 n times sooner than their mean does. With `Identity` the product
x * (1/n), the order of the sum and therefore every bit of the result are those of plain DDP.

`Cast` rounds to the nearest value, which is deterministic and so biased: by at most 2^-11 of
the value for float16, 2^-8 for bfloat16. Error feedback therefore is on by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.codec import Key, SummableCodec, check_size

_PIECE = 1 << 16
_CAST_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Dense(SummableCodec):
    """A payload that is the vector itself, in `sum_dtype`."""

    def max_nbytes(self, numel: int) -> int:
        """The values in `sum_dtype`."""
        return numel * self.sum_dtype.itemsize

    def encode_into(
        self, x: Tensor, out: Tensor, key: Key, offset: int = 0, *, world: int = 1
    ) -> int:
        """Copy the values."""
        size = self.max_nbytes(x.numel())
        out[:size].view(self.sum_dtype).copy_(x)
        return size

    def decode_into(
        self,
        payload: Tensor,
        out: Tensor,
        key: Key,
        offset: int = 0,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Copy the values back."""
        check_size(payload, self.max_nbytes(out.numel()))
        values = payload.view(self.sum_dtype)
        if not accumulate:
            out.copy_(values)
            if weight != 1:
                out.mul_(weight)
            return
        pieces = zip(torch.split(out, _PIECE), torch.split(values, _PIECE), strict=True)
        for part, half in pieces:
            part.add_(half.float(), alpha=weight)  # mixed types in one `add_` are slow

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """Nothing but values."""
        return {"values": payload.numel()}

    def term_nbytes(self, numel: int, world: int) -> int:
        """As a payload."""
        return self.max_nbytes(numel)

    def encode_term(
        self, x: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """The share of this worker in the mean."""
        torch.mul(x.float(), 1.0 / world, out=out.view(self.sum_dtype))

    def decode_sum(
        self, total: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """The sum is the mean."""
        self.decode_into(total, out, key)

    def subtract_term(
        self, term: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """The share is a `world`-th of the vector."""
        self.decode_into(term, out, key, weight=-float(world), accumulate=True)


@dataclass(frozen=True)
class Identity(Dense):
    """Every value as float32.

    >>> import gradwire as gw
    >>> gw.parse("none")
    Identity()
    """

    unbiased = True
    name = "none"
    sum_dtype = torch.float32


@dataclass(frozen=True)
class Cast(Dense):
    """Every value rounded to 16 bits: `dtype` is "fp16" or "bf16".

    >>> import torch, gradwire as gw
    >>> codec = gw.parse("bf16")
    >>> codec.decode(codec.encode(torch.tensor([1 / 3]), gw.Key()), 1, gw.Key())
    tensor([0.3340])
    """

    dtype: str = "fp16"

    unbiased = False

    def __post_init__(self) -> None:
        if self.dtype not in _CAST_DTYPES:
            raise ValueError(f'`dtype` of Cast must be "fp16" or "bf16", got {self.dtype!r}.')

    @property
    def name(self) -> str:
        """The spec name is the type."""
        return self.dtype

    @property
    def sum_dtype(self) -> torch.dtype:
        """The type that values are rounded to."""
        return _CAST_DTYPES[self.dtype]

    def settings(self) -> dict[str, Any]:
        """None: the name says it all."""
        return {}
