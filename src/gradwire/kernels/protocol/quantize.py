"""Stochastic rounding to levels of a scale, packed as in `formats/layout.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from gradwire.kernels.formats.debt import Debt
from gradwire.key import Key


class Quantize(Protocol):
    """Codes of a level each, and their mean."""

    def quantize(
        self,
        x: Tensor,
        scales: Tensor,
        codes: Tensor,
        debt: Debt | None = None,
        *,
        levels: float,
        width: int,
        block: int | None,
        norm: str | None,
        key: Key,
        offset: int = 0,
        shift: int = 0,
        dithered: bool = False,
    ) -> None:
        """Round x / scale * levels to an integer up or down at random, and pack it.

        The code of a value is that integer plus `levels`, in [0, 2 * levels]. The fraction is kept
        to 16 bits, rounded to nearest, and met by 16 random bits: the bias is at most 2^-17 of a
        step, and levels / 128 * 2^-16 more for the rounding of the product. `levels` may be half of
        an odd number: values are then rounded to integers and a half, and none is zero.

        `x` is float32, float16 or bfloat16. `norm` says which scales to compute first, as in
        `block_scales`; None takes them as given, NaN for a block that holds inf or NaN. Where the
        scale is NaN, codes are zero. `offset`, a multiple of 8, is the place of the first value in
        its random stream, and `shift` is added to the random bits, modulo 2^16.

        With a `debt`, what is due is added to `x` first, and what the codes do not say of that is
        owed: read as by `dequantize`, or if they are `dithered` (without a `shift`) as by
        `dequantize_dithered`, in steps of scale / levels, 0 for a scale of `MIN_SCALE`. `levels` is
        a whole number then.
        """

    def dequantize(
        self,
        scales: Tensor,
        codes: Tensor,
        out: Tensor,
        *,
        levels: int,
        width: int,
        block: int | None,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Write, or add, weight * scale / levels * (code - levels) to `out` (float32)."""

    def dequantize_mean(
        self,
        scales: Sequence[Tensor],
        codes: Sequence[Tensor],
        out: Tensor,
        *,
        levels: int,
        width: int,
        block: int | None,
    ) -> None:
        """Write the mean of several vectors to `out` (float32), added up in their order."""
