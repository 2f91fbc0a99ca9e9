"""Integers that are added: levels at equal distances, with the linear or the subtractive dither.

Equations are those of `global_qsgd/__init__.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Adder, NetworkAdder
from gradwire.codecs.scaled import ScaledAdder
from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.fields import WORD, Dither, field_width, num_words
from gradwire.kernels.formats.layout import MAX_WIDTH, packed_nbytes
from gradwire.key import Hop, Key

_PERMUTATION = Hop.PERMUTATION


class Grid(NamedTuple):
    """So many levels on each side of zero, up to the scale of a block.

    Half of an odd number is a grid without a zero: 1.5 are the levels -1.5, -0.5, 0.5 and 1.5.
    """

    levels: float
    block: int | None
    subtractive: bool


class UniformAdder(ScaledAdder):
    """Integers, added where they arrive: totals are just wide enough for the sum."""

    _most_width = MAX_WIDTH

    def __init__(self, grid: Grid, world: int, scales: Tensor) -> None:
        super().__init__(world, scales)
        self._grid = grid
        self._width = field_width(grid.levels, 1)
        self._total_width = field_width(grid.levels, world)
        if self._total_width > self._most_width:
            raise ValueError(
                f"a sum of {world} codes of {grid.levels:g} levels takes {self._total_width} bits, "
                f'more than {self._most_width}; use fewer levels, or `collective="all_reduce"`.'
            )

    def code_nbytes(self, numel: int) -> int:
        return packed_nbytes(numel, self._width)

    def total_nbytes(self, numel: int) -> int:
        return packed_nbytes(numel, self._total_width)

    def add(self, codes: Tensor, total: Tensor, numel: int, key: Key, offset: int = 0) -> None:
        kernels.for_device(total.device).add_packed(
            codes, total, numel=numel, width=self._width, total_width=self._total_width
        )

    def quantize(
        self, x: Tensor, codes: Tensor, key: Key, offset: int, *, norm: str | None = None
    ) -> None:
        kernels.for_device(x.device).quantize(
            x, self.scales, codes, width=self._width, norm=norm, **self._rounding(key, offset)
        )

    def encode_and_subtract(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        if self._grid.subtractive:
            super().encode_and_subtract(x, out, key, offset)
            return
        kernels.for_device(x.device).quantize(
            x, self.scales, out, Debt(x), width=self._width, norm=None,
            **self._rounding(key, offset),
        )  # fmt: skip

    def dequantize(
        self, codes: Tensor, out: Tensor, key: Key, offset: int, *,
        total: bool, weight: float, accumulate: bool = False,
    ) -> None:  # fmt: skip
        kernels.for_device(out.device).dequantize_sum(
            self.scales, codes, out, width=self._total_width if total else self._width,
            weight=weight, accumulate=accumulate, **self._meaning(key, offset, total=total),
        )  # fmt: skip

    def _rounding(self, key: Key, offset: int) -> dict[str, Any]:
        """How values are rounded: eq. (2)."""
        subtractive = self._grid.subtractive
        return {
            "levels": self._grid.levels,
            "block": self._grid.block,
            "key": common(key, self.world) if subtractive else key,
            "offset": offset,
            "shift": _shift(key, self.world) if subtractive else 0,
        }

    def _meaning(self, key: Key, offset: int, *, total: bool) -> dict[str, Any]:
        """What the sum of all codes stands for, or one of them: eq. (6), with the sum of (7)."""
        dither, terms = None, self.world if total else 1
        if self._grid.subtractive:
            shift = 0 if total else _shift(key, self.world)
            dither = Dither(common(key, self.world), offset, terms, shift, _centre(terms))
        return {
            "levels": self._grid.levels, "block": self._grid.block, "terms": terms,
            "dither": dither,
        }  # fmt: skip


class FieldAdder(NetworkAdder, UniformAdder):
    """The same integers in fields of int32 words, just wide enough for the sum from the start."""

    dtype = torch.int32
    _most_width = WORD
    encode_and_subtract = Adder.encode_and_subtract

    def code_nbytes(self, numel: int) -> int:
        return 4 * num_words(numel, self._total_width)

    def quantize(
        self, x: Tensor, codes: Tensor, key: Key, offset: int, *, norm: str | None = None
    ) -> None:
        kernels.for_device(x.device).quantize_fields(
            x, self.scales, codes.view(torch.int32), width=self._total_width, norm=norm,
            **self._rounding(key, offset),
        )  # fmt: skip

    def dequantize(
        self, codes: Tensor, out: Tensor, key: Key, offset: int, *,
        total: bool, weight: float, accumulate: bool = False,
    ) -> None:  # fmt: skip
        kernels.for_device(out.device).dequantize_fields(
            self.scales, codes.view(torch.int32), out, width=self._total_width, weight=weight,
            accumulate=accumulate, **self._meaning(key, offset, total=total),
        )  # fmt: skip


def common(key: Key, world: int) -> Key:
    """The stream that all share, such as that of u in eq. (7); a payload of its own has its own."""
    return key.of(rank=0) if world > 1 else key


def _shift(key: Key, world: int) -> int:
    """This worker's pi(i) / n of eq. (7), in 2^-16; all workers derive the same permutation."""
    if world == 1:
        return 0
    stream, counter = key.of(rank=0, hop=_PERMUTATION), torch.arange(world)
    words = kernels.for_device(counter.device).philox(counter, stream)[0]
    return (int(words.argsort(stable=True)[key.rank]) << 16) // world


def _centre(terms: int) -> int:
    """What makes the sum of `terms` stratified dithers vanish on average.

    In units of 2^-17 steps it is terms * (2^16 - 1) less twice the sum of the shifts,
    sum_j floor(2^16 j / terms) = ((2^16 - 1) (terms - 1) + gcd(2^16, terms) - 1) / 2.
    """
    return (1 << 16) - math.gcd(1 << 16, terms)
