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

    def block_moments(self, x: Tensor, peaks: Tensor, norms: Tensor, *, block: int | None) -> None:
        """Both of them, from one look at the values: "max" to `peaks` and "l2" to `norms`."""
