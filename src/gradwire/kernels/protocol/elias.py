"""Elias's recursive code.

P. Elias, "Universal codeword sets and representations of the integers", IEEE Trans. Inf. Theory
21 (1975). Codes come one a byte, as `quantize` packs them at a width of 8; `levels` stands for 0.

The dense code has magnitude + 1 of every value, and the sign of every nonzero. The sparse one has
gap, sign and magnitude of every nonzero.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Elias(Protocol):
    """Codes of quantized values whose length depends on them."""

    def elias_sizes(self, codes: Tensor, *, levels: int) -> tuple[int, int, int]:
        """(nonzeros of `codes`, bits of their sparse code, bits of their dense code)."""

    def elias_encode(self, codes: Tensor, out: Tensor, *, levels: int, sparse: bool) -> None:
        """Write the sparse or dense Elias code of `codes` to `out`, the first bit highest."""

    def elias_decode(
        self, stream: Tensor, codes: Tensor, *, levels: int, sparse: bool, nonzeros: int
    ) -> bool:
        """Fill `codes` from `stream`; False if it is not a whole code of exactly that many values.

        What `codes` then holds is undefined.
        """
