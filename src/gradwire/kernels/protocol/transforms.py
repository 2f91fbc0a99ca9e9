"""Orthonormal transforms of blocks.

With B values x in a block, a power of two, and F_k = sum_j x_j exp(-2 pi i j k / B):

    fft    c = sqrt(2 / B) (F_0 / sqrt(2), Re F_1, Im F_1, Re F_2, ..., F_{B/2} / sqrt(2))
    dct    c_k = s_k sum_j x_j cos(pi (2 j + 1) k / (2 B)), s_0 = 1 / sqrt(B), else sqrt(2 / B)

What is left after the last whole block is cut into falling powers of two, each transformed alone.
All NaN are one NaN. `reference/transforms.py` says in which order values are added and multiplied.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Transforms(Protocol):
    """To coefficients and back; `out` may be the input."""

    def transform(self, x: Tensor, out: Tensor, *, domain: str, block: int) -> None:
        """Write the coefficients of the blocks of `x` (float32), "fft" or "dct", to `out`."""

    def transform_back(
        self,
        coefficients: Tensor,
        out: Tensor,
        *,
        domain: str,
        block: int,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Write, or add, `weight` times the values with these `coefficients` to `out` (float32)."""
