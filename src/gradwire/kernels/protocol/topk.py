"""The largest values of every block."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class TopK(Protocol):
    """Which values of a block are kept, and what they are."""

    def largest_of_blocks(self, x: Tensor, bitmap: Tensor, kept: Tensor, *, block: int) -> None:
        """Write where the largest values of each block are, and what they are.

        A block of m values keeps its ceil(m * count / block) largest magnitudes, and fewer if fewer
        are not zero; of equal ones, the first. `kept` (float32, blocks x count) has a row for each
        block: its values in their order, and zeros after them. A block that holds inf or NaN keeps
        none, and has a row of NaN. `x` is float32, float16 or bfloat16, `block` a power of two, 8
        or more; the bitmap is as in `sparse.py`.
        """
