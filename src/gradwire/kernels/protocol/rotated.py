"""Values that are rotated, see `formats/rotation.py`, and rounded to the best levels of N(0, 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from gradwire.key import Key


class Rotated(Protocol):
    """Codes of a sign and a level each, and sums of them."""

    def quantize_rotated(
        self,
        x: Tensor,
        scales: Tensor,
        codes: Tensor,
        *,
        bits: int,
        block: int,
        key: Key,
        offset: int = 0,
    ) -> None:
        """Rotate every block, round it to 1 to 4 bits per value, and pack the codes.

        With y for the rotated block, of the length of x, and q for the levels that it is rounded
        to, its scale is <y, y> / <y, q>. It is 0 for a block of zeros and NaN for one that holds
        inf or NaN, whose codes are as those of zeros. `x` is float32, float16 or bfloat16, `block`
        a power of two from 512 to 4096. `offset`, a multiple of it, is the place of the first value
        in its random stream.
        """

    def dequantize_rotated(
        self,
        scales: Sequence[Tensor],
        codes: Sequence[Tensor],
        out: Tensor,
        *,
        bits: int,
        block: int,
        key: Key,
        offset: int = 0,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Write, or add, `weight` times the sum of several vectors to `out` (float32).

        All were quantized with the same key, so they are added in their order, still rotated, and
        then rotated back once. Values that are too large for float32 become its largest ones. A
        block with a scale that is not finite is NaN.
        """
