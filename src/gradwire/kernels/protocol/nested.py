"""Nested dithered quantization, for NDQSG.

A value in fine steps becomes q = floor(y + U) as in `dithered.py`, but only its place in a coarse
cell of `ratio` fine steps is kept: the code is (q + (ratio - 1) / 2) modulo `ratio`.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.key import Key


class Nested(Protocol):
    """Codes that are decoded with what is already known of the mean."""

    def quantize_nested(
        self,
        x: Tensor,
        units: Tensor,
        codes: Tensor,
        *,
        ratio: int,
        width: int,
        block: int | None,
        key: Key,
        offset: int = 0,
    ) -> None:
        """Write the place of x / unit, rounded at random, in its coarse cell.

        At most 127 units from zero are told apart, and values beyond `MAX_SCALE` count as that. A
        unit that is zero or NaN makes codes of q = 0; for a block that holds inf or NaN it is NaN.
        """

    def add_nested(
        self,
        units: Tensor,
        codes: Tensor,
        total: Tensor,
        *,
        count: int,
        ratio: int,
        alpha: float,
        width: int,
        block: int | None,
        key: Key,
        offset: int = 0,
        weight: float = 1.0,
    ) -> None:
        """Decode by the mean y of `count` vectors, and add `weight` times the result to `total`.

        `total` (float32) is the sum of those vectors, each times `weight`. With s the place in the
        cell, r = s - U + 1/2 - 2^-17 - alpha y / unit, and the result is
        y + alpha unit (r - ratio round(r / ratio)). Where the unit is 0, nothing is added. Codes
        are below `ratio`.
        """
