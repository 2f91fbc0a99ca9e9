"""Values that are rotated, see `formats/rotation.py`, and stay floats."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.key import Key


class Turned(Protocol):
    """There and back."""

    def rotate_blocks(
        self, x: Tensor, out: Tensor, *, block: int, key: Key, offset: int = 0
    ) -> None:
        """Write the blocks of `x`, rotated and 1/64 as long, to `out` (float32).

        The last one is padded, so `out` has `padded_numel` values. Values beyond 2^127 count as
        that; a block that holds inf or NaN becomes NaN. `x` is float32, float16 or bfloat16,
        `block` a power of two from 512 to 4096, and `offset`, a multiple of it, is the place of the
        first value in its random stream.
        """

    def rotate_blocks_back(
        self,
        y: Tensor,
        out: Tensor,
        *,
        block: int,
        key: Key,
        offset: int = 0,
        accumulate: bool = False,
    ) -> None:
        """Write, or add, what `y` (float32) was before `rotate_blocks` to `out` (float32).

        Values that are too large for float32 become its largest ones. A block that holds inf or NaN
        is NaN.
        """
