"""How the largest coefficients of every block lie in memory, for all backends.

A block of B coefficients keeps the `count` of the largest magnitude, of equal ones the first; the
last block, if it is shorter, in proportion, rounded up. Of a vector there are

    scales   the `base` of each block's range floats (`rangefloat.py`), fitted to its largest
             coefficient: 16 bits, or 32 where a mantissa of 8 bits or more takes them; 0 stands for
             a block that is not finite, which then has codes of zeros for its first coefficients
    bitmap   bit i % 8 of byte i / 8 is set if coefficient i is kept, filled up with zeros to a
             multiple of 8 bytes
    codes    the kept coefficients in their order as range floats, those of each `STRIP` blocks
             packed together as those of a tile are in `layout.py`, the last strip filled up to a
             multiple of 8; float32 without `bits`, and then a base is 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from gradwire.kernels.formats.layout import num_blocks, packed_nbytes

STRIP = 8
_SHORT_MANTISSA = 7


class Kept(NamedTuple):
    """The coefficients that are kept of a vector."""

    scales: Tensor
    bitmap: Tensor
    codes: Tensor


@dataclass(frozen=True)
class Form:
    """What is kept of each block of `block` coefficients, and in how many bits; None: float32."""

    block: int
    count: int
    bits: int | None
    mantissa: int

    def kept_of(self, size: int) -> int:
        """How many of a block of `size` coefficients.

        >>> form = Form(256, 96, 4, 1)
        >>> form.kept_of(256), form.kept_of(100)
        (96, 38)
        """
        return -(-size * self.count // self.block)

    def kept(self, numel: int) -> int:
        """How many of a vector."""
        whole, rest = divmod(numel, self.block)
        return whole * self.count + self.kept_of(rest)

    @property
    def scale_nbytes(self) -> int:
        """Bytes of one scale."""
        return 4 if self.bits is not None and self.mantissa > _SHORT_MANTISSA else 2

    def scales_nbytes(self, numel: int) -> int:
        """Bytes of all scales."""
        return self.scale_nbytes * num_blocks(numel, self.block)

    def codes_nbytes(self, numel: int) -> int:
        """Bytes of all codes."""
        kept = self.kept(numel)
        return 4 * kept if self.bits is None else packed_nbytes(kept, self.bits)
