"""The largest values of a vector, and the coding of where they are.

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
    """Which values are kept, what they are, and where."""

    def largest(self, x: Tensor) -> int:
        """The bit pattern of the largest magnitude; 0x7F800000 or more if it is not finite."""

    def find_threshold(self, x: Tensor, count: int) -> tuple[int, int]:
        """(threshold, stop): which are the `count` largest magnitudes, 1 <= count <= numel.

        They are the values before `stop` whose bit pattern without its sign is `threshold` or more,
        and those from `stop` on where it is more. Of equal ones, the first are taken.
        """

    def compact(
        self, x: Tensor, bitmap: Tensor, kept: Tensor, *, threshold: int, stop: int
    ) -> None:
        """Write the values that `find_threshold` names to `kept`, in order, and where they are.

        `kept` may be the start of `x`.
        """

    def expand(self, bitmap: Tensor, kept: Tensor, out: Tensor) -> None:
        """Add `kept` to the values of `out` (float32) that `bitmap` names; it names as many."""

    def count_bits(self, bitmap: Tensor) -> int:
        """How many values a bitmap names."""

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
