"""Means of floats."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.key import Key


class Floats(Protocol):
    """Means that do not overflow where their terms do not."""

    def mean_floats(self, rows: Tensor, out: Tensor, *, key: Key, offset: int = 0) -> None:
        """Write the mean of `rows` (world, numel) to `out`, float32 or of the type of the rows.

        They are added in their order in float64, so that no sum overflows before the mean does, and
        the mean is rounded to float32. For an `out` of 16 bits it is then rounded up or down at
        random, by 16 random bits per value: exactly unbiased, but for subnormals of float16, whose
        fraction is first rounded to 16 bits (a bias of at most 2^-17 of their distance).
        """
