"""Values as a sign and one of two levels of their block.

The levels of a block are the means of the two groups into which its magnitudes are best cut, by the
square error, each put on its nearest mark (`formats/levels.py`). Over the magnitudes in falling
order and the sums S_j of the first j of them in float64, the cut is the first j with the largest
S_j^2 / j + (S_n - S_j)^2 / (n - j). At j = n there is one group; with `bits=1`, that is the cut.
Where the means are farther apart than levels can be, the lower level is raised.

A code is 1 if the value is negative, plus 2 if it is nearer to the upper level than to the lower
one. Codes are packed as in `formats/layout.py`, those of all blocks one after the other.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Levels(Protocol):
    """To levels and back."""

    def fit_levels(self, kept: Tensor, levels: Tensor, codes: Tensor, *, bits: int) -> int:
        """Write the levels of every row of `kept` and the codes of its values; how many there are.

        Rows are as `largest_of_blocks` writes them: zeros have no code, and a row of NaN has only
        the word `SPOILT`. `levels` (uint8) has two bytes for each row, little-endian, and `codes`
        room for a code of every value.
        """

    def add_levels(
        self,
        bitmap: Tensor,
        levels: Tensor,
        codes: Tensor,
        out: Tensor,
        *,
        block: int,
        bits: int,
        weight: float = 1.0,
    ) -> None:
        """Add `weight` times the values that have codes to those of `out` (float32) they stand for.

        `bitmap` names as many as there are codes. All values of a spoilt block become NaN.
        """
