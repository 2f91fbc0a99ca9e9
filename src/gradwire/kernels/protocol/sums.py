"""Sums of packed codes, made by the owner of a shard."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.kernels.formats.fields import Dither


class Sums(Protocol):
    """From codes to their sum, and from there to values."""

    def add_packed(
        self, codes: Tensor, total: Tensor, *, numel: int, width: int, total_width: int
    ) -> None:
        """Pack the sums of the rows of `codes`, `numel` packed codes each, in `total_width` bits.

        What the last tile is padded with is added too. Sums are below 2^16.
        """

    def dequantize_sum(
        self,
        scales: Tensor,
        total: Tensor,
        out: Tensor,
        *,
        levels: float,
        width: int,
        block: int | None,
        terms: int = 1,
        weight: float = 1.0,
        accumulate: bool = False,
        dither: Dither | None = None,
    ) -> None:
        """As `dequantize_fields`, from packed sums of `width` bits."""
