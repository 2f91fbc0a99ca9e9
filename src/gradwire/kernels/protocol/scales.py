"""The scales of blocks."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Scales(Protocol):
    """Norms of blocks."""

    def block_scales(self, x: Tensor, scales: Tensor, *, block: int | None, norm: str) -> None:
        """Write the "max" or "l2" norm of each block of `x` to `scales`.

        `x` is float32, float16 or bfloat16, `scales` float32. A `block` of None is all of `x`. The
        scale of a block that holds inf or NaN is NaN; others are kept from `MIN_SCALE` to
        `MAX_SCALE`. The l2 norm is defined to the last bit: squares in float64, a halving tree over
        the values of a tile, and another over the tiles of a block.
        """

    def block_steps(
        self, x: Tensor, ratios: Tensor, steps: Tensor, *, segment: int | None, block: int | None
    ) -> None:
        """Write the step of each block to `steps`: its root mean square times a ratio.

        `ratios` (float32) has one for each `segment` of values, which are whole blocks; None is all
        of them. The root mean square is the l2 norm over the root of how many values there are. A
        step is never below 1 / 127 of the largest magnitude, so that codes fit 8 bits, nor above
        `MAX_SCALE`; it is 0 for a block of nothing but values up to `MIN_SCALE`, and NaN where
        scales are.
        """
