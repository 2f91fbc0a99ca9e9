"""Floats without loss.

`formats/lossless.py` has the terms. A payload is the type of the values (0 float32, 1 float16,
2 bfloat16) and three zeros, a head of 12 bytes for every chunk, and their bodies. A body is

- the bitmap, if some values are coded and others not: the first value is the lowest bit of the
  first byte, and there are zeros up to a multiple of 32 bits;
- the words: their low 16 bits, if the width is 16 or more; the next 8 bits, if it has them; and
  what is left of the width, packed. Without a prior, the values in place of the words, and no
  ranks;
- the codes of the ranks: those of every level, packed; then the ranks that no level has, as bytes;

and zeros up to a multiple of 4 bytes. "Packed" is as in `formats/layout.py`, with all codes in one
tile.

The sample of n values is those at 0, s, 2s, ..., s = max(1, n // 256), up to 256 of them. The
centre is one from the smallest to the largest exponent in the sample; it and the prior are those
that take the fewest bits there, the first prior and the lowest centre if several do. A chunk that
is no shorter than its values is sent plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Lossless(Protocol):
    """The bits of floats, all of them."""

    def pack_floats(self, x: Tensor, payload: Tensor) -> int:
        """Write the payload of `x`, float32, float16 or bfloat16; its size in bytes.

        `payload` has room for `max_nbytes` and lies at a multiple of 4.
        """

    def unpack_floats(
        self, payload: Tensor, out: Tensor, *, weight: float = 1.0, accumulate: bool = False
    ) -> bool:
        """Write, or add, `weight` times the values to `out`; False if the payload is damaged.

        `out` is float32, or has the type of the values and takes their bits as they are. What it
        holds if the payload is damaged is undefined.
        """

    def mean_packed_floats(self, payloads: Sequence[Tensor], out: Tensor) -> bool:
        """Write the mean that `mean_floats` has of what payloads say (float32), with one NaN.

        False if a payload is damaged; what `out` then holds is undefined.
        """
