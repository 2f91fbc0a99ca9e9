"""Products of a large matrix and a few vectors, for low-rank approximations.

Factors are rows: `p` is (r, n) and `q` is (r, m) for an (n, m) matrix. All is float32, and every
product is added by a fused multiply-add, in an order that no machine changes. The sign of a NaN is
not defined.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LowRank(Protocol):
    """Each goes over the matrix once. `extra` is added to it on the way; None counts as zeros."""

    def row_products(self, x: Tensor, extra: Tensor | None, q: Tensor, out: Tensor) -> None:
        """Write (x + extra) q^T to `out` (r, n), transposed.

        Columns are added in 16 lanes side by side, the last ones filled up with zeros, and the
        lanes by a halving tree.
        """

    def column_products(self, x: Tensor, extra: Tensor | None, p: Tensor, out: Tensor) -> None:
        """Write p (x + extra) to `out` (r, m): the rows are added in their order."""

    def add_outer(self, p: Tensor, q: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Write, or add, p^T q to `out` (n, m).

        Terms are added in the order of the factors, which are filled up with zeros to a multiple
        of four.
        """

    def settle_outer(
        self, x: Tensor, extra: Tensor, p: Tensor, q_mean: Tensor, q_own: Tensor
    ) -> None:
        """Write x + extra - p^T q_own to `extra`, and p^T q_mean to `x`, as `add_outer` has it."""

    def orthonormalize(self, rows: Tensor, wanted: Tensor | None = None) -> None:
        """Make the rows of (r, n) orthonormal, in place, by modified Gram-Schmidt done twice.

        Unless `wanted` (int32, one value) is 0: then nothing is done.

        In float64; products are added in 16 lanes side by side, and these by a halving tree. A row
        of which less than 2^-18 is left becomes zero, one that is not finite NaN.
        """
