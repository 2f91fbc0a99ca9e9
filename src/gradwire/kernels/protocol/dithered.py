"""Subtractive dither, for DQSG.

A value y in steps becomes q = floor(y + U), with U = r / 2^16 from the value's 16 random bits, and
comes back as q - U + 1/2 - 2^-17. The error is then uniform on the 2^16 points -1/2 + 2^-17 to
1/2 - 2^-17, whatever y is: its mean is exactly zero. Codes are q + zero, modulo 256.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.key import Key


class Dithered(Protocol):
    """Codes whose dither the decoder subtracts."""

    def quantize_dithered(
        self,
        x: Tensor,
        units: Tensor,
        codes: Tensor,
        *,
        zero: int,
        block: int | None,
        key: Key,
        offset: int = 0,
    ) -> None:
        """Round x / unit to one of -127 to 127 at random, up or down, and pack it in 8 bits.

        Like `quantize`, but the step of each block is given instead of its scale, so that the codes
        do not depend on how many levels there are. Values beyond `MAX_SCALE` count as that. A unit
        that is zero or NaN makes codes of `zero`; for a block that holds inf or NaN it is NaN.
        """

    def dequantize_dithered(
        self,
        units: Tensor,
        codes: Tensor,
        out: Tensor,
        *,
        zero: int,
        width: int,
        block: int | None,
        key: Key,
        offset: int = 0,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Write, or add, weight * unit * (q - U + 1/2 - 2^-17) to `out` (float32).

        In units of 2^-17 the bracket is an integer below 2^24, so float32 holds it exactly.
        """
