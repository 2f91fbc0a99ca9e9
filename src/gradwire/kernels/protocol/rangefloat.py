"""Range floats; the format is in `formats/rangefloat.py`."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class RangeFloat(Protocol):
    """To and from floats of a few bits."""

    def range_float_encode(
        self, values: Tensor, codes: Tensor, *, bits: int, mantissa: int, base: int
    ) -> None:
        """Round finite float32 `values` to range floats of `bits` bits and pack them to `codes`."""

    def range_float_decode(
        self, codes: Tensor, out: Tensor, *, bits: int, mantissa: int, base: int
    ) -> None:
        """Write the values of as many range floats as `out` (float32) has room for."""
