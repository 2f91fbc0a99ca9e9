"""The coding of where the values of a sparse vector are.

A *bitmap* has bit i % 8 of byte i / 8 set if value i is kept; it is padded with zeros to a
multiple of 8 bytes. *Gaps* say the same in Rice's code of the number g of dropped values before
each kept one: the low `rice` bits of every g, packed as in `formats/layout.py`, and apart from them
g >> rice in unary, as so many zeros and a one. That is within 1 % of the entropy if values are
kept independently of each other, and shorter than the bitmap if fewer than about three in ten
are.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Sparse(Protocol):
    """Where values are kept."""

    def gap_sizes(self, bitmap: Tensor) -> list[int]:
        """How many bits the unary part of the gaps takes, for `rice` from 0 to 15."""

    def gap_encode(self, bitmap: Tensor, low: Tensor, unary: Tensor, *, rice: int) -> None:
        """Write the gaps of `bitmap`; `unary` is padded like a bitmap."""

    def gap_decode(
        self, low: Tensor, unary: Tensor, bitmap: Tensor, *, rice: int, count: int, numel: int
    ) -> bool:
        """Write the bitmap of `count` gaps; False if they are not such as `gap_encode` writes.

        What `bitmap` then holds is undefined.
        """
