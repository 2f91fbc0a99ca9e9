"""Codes of a sign and an exponent, and their sum in the same kind of code.

A code of `width` bits has its sign highest, and below it c from 0 to 2^(width - 1) - 1. Zero is
c = 0; any other c stands for 2^(1 + headroom - c) of the scale, so the least magnitude has the
largest c. One code goes up to the scale itself; `headroom` doublings are left above it, one for
each time that codes are added.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.key import Key


class Exponential(Protocol):
    """Stochastic rounding to powers of two."""

    def exp_quantize(
        self,
        x: Tensor,
        scales: Tensor,
        codes: Tensor,
        *,
        width: int,
        headroom: int,
        block: int | None,
        norm: str | None,
        key: Key,
        offset: int = 0,
    ) -> None:
        """Round x / scale at random to the power of two below or above it, and pack its code.

        16 random bits are added below the exponent of a float32, whose mantissa is rounded to 16
        bits for it; a carry moves up to the next power. What is below the least magnitude is
        rounded to it or to zero in the same way. `norm` is as in `quantize`.
        """

    def exp_dequantize(
        self,
        scales: Tensor,
        codes: Tensor,
        out: Tensor,
        *,
        width: int,
        headroom: int,
        block: int | None,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Write, or add, weight * scale * (what the code stands for) to `out` (float32)."""

    def exp_reduce(
        self, into: Tensor, term: Tensor, *, width: int, key: Key, offset: int = 0
    ) -> None:
        """Replace the codes in `into` by codes of their sum with those in `term`, without bias.

        With k the difference of the exponents, 2^-c (1 + 2^-k) is rounded to 2^-c or 2^-(c - 1),
        and 2^-c (1 - 2^-k) to 2^-c or 2^-(c + 1). Probabilities below 2^-16 count as none.
        """
