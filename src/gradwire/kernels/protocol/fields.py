"""Codes in fields of 32-bit words that the network may add, see `formats/fields.py`."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.kernels.formats.fields import Dither
from gradwire.key import Key


class Fields(Protocol):
    """To fields, and from the sum of several."""

    def quantize_fields(
        self,
        x: Tensor,
        scales: Tensor,
        words: Tensor,
        *,
        levels: float,
        width: int,
        block: int | None,
        norm: str | None,
        key: Key,
        offset: int = 0,
        shift: int = 0,
    ) -> None:
        """As `quantize`, but into fields of `width` bits of `words` (int32)."""

    def dequantize_fields(
        self,
        scales: Tensor,
        words: Tensor,
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
        """Write, or add, weight * scale / levels * (field - terms * levels) to `out` (float32).

        With a `dither`, the level moves by what the dither says. A block whose scale is `MIN_SCALE`
        holds zeros, and they stay zeros. Where terms * levels is not an integer there must be one.
        """
