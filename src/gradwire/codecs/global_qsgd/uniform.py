"""Global-QSGD with levels at equal distances: the linear and the subtractive dither.

Equations are those of `global_qsgd.py`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import SummableCodec
from gradwire.codecs.global_qsgd import GlobalQSGD
from gradwire.kernels.formats.fields import Dither, field_width, num_words
from gradwire.kernels.formats.layout import MAX_WIDTH, packed_nbytes
from gradwire.key import Key

_PERMUTATION_HOP = 255
"""The random stream that permutes the workers: no message is encoded with it."""


class UniformGlobalQSGD(GlobalQSGD, SummableCodec, dithers=("linear", "subtractive")):
    """Levels at equal distances: integers are summed, by the network or where they arrive."""

    sum_dtype = torch.int32

    def code_nbytes(self, numel: int, world: int) -> int:
        """Just enough bits for a code, whatever the world."""
        return packed_nbytes(numel, self._width(1))

    def total_nbytes(self, numel: int, world: int) -> int:
        """Just enough bits for the sum of `world` codes."""
        if self._width(world) > MAX_WIDTH:
            raise ValueError(
                f"a sum of {world} codes of {self.num_levels} levels takes {self._width(world)} "
                f'bits, more than {MAX_WIDTH}; use fewer levels, or `collective="all_reduce"`.'
            )
        return packed_nbytes(numel, self._width(world))

    def add_codes(self, codes: Tensor, total: Tensor, numel: int, key: Key, offset: int) -> None:
        """See `ReducibleCodec.add_codes`."""
        kernels.for_device(total.device).add_packed(
            codes, total, numel=numel, width=self._width(1), total_width=self._width(len(codes))
        )

    def term_nbytes(self, numel: int, world: int) -> int:
        """Fields of just enough bits for the sum of `world` codes."""
        return 4 * num_words(numel, self._width(world))

    def encode_term(
        self, x: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """See `SummableCodec.encode_term`."""
        kernels.for_device(x.device).quantize_fields(
            x, self._scales(shared), out.view(torch.int32), width=self._width(world), norm=None,
            **self._rounding(key, offset, world),
        )  # fmt: skip

    def decode_sum(
        self, total: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """See `SummableCodec.decode_sum`."""
        kernels.for_device(out.device).dequantize_fields(
            self._scales(shared), total.view(torch.int32), out, width=self._width(world),
            weight=1 / world, **self._levels(key, offset, world, total=True),
        )  # fmt: skip

    def subtract_term(
        self, term: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """See `SummableCodec.subtract_term`."""
        kernels.for_device(out.device).dequantize_fields(
            self._scales(shared), term.view(torch.int32), out, width=self._width(world),
            weight=-1.0, accumulate=True, **self._levels(key, offset, world, total=False),
        )  # fmt: skip

    def _quantize(
        self, x: Tensor, scales: Tensor, out: Tensor, key: Key, offset: int, *,
        world: int, norm: str | None,
    ) -> None:  # fmt: skip
        kernels.for_device(x.device).quantize(
            x, scales, out, width=self._width(1), norm=norm, **self._rounding(key, offset, world)
        )

    def _dequantize(
        self, scales: Tensor, codes: Tensor, out: Tensor, key: Key, offset: int, *,
        world: int, total: bool, weight: float, accumulate: bool,
    ) -> None:  # fmt: skip
        kernels.for_device(out.device).dequantize_sum(
            scales, codes, out, width=self._width(world if total else 1), weight=weight,
            accumulate=accumulate, **self._levels(key, offset, world, total=total),
        )  # fmt: skip

    def _width(self, terms: int) -> int:
        """Bits that the sum of so many codes takes."""
        return field_width(self.num_levels, terms)

    def _rounding(self, key: Key, offset: int, world: int) -> dict[str, Any]:
        """How values are rounded: eq. (2)."""
        subtractive = self.dither == "subtractive"
        return {
            "levels": self.num_levels,
            "block": self.block,
            "key": _common(key, world) if subtractive else key,
            "offset": offset,
            "shift": _shift(key, world) if subtractive else 0,
        }

    def _levels(self, key: Key, offset: int, world: int, *, total: bool) -> dict[str, Any]:
        """What the sum of all codes stands for, or one of them: eq. (6), with the sum of (7)."""
        dither, terms = None, world if total else 1
        if self.dither == "subtractive":
            shift = 0 if total else _shift(key, world)
            dither = Dither(_common(key, world), offset, terms, shift, _centre(terms))
        return {"levels": self.num_levels, "block": self.block, "terms": terms, "dither": dither}


def _common(key: Key, world: int) -> Key:
    """The stream of u in eq. (7); a payload of its own has its own."""
    return key.of(rank=0) if world > 1 else key


def _shift(key: Key, world: int) -> int:
    """This worker's pi(i) / n of eq. (7), in 2^-16; all workers derive the same permutation."""
    if world == 1:
        return 0
    stream = key.of(rank=0, hop=_PERMUTATION_HOP)
    words = kernels.for_device(torch.device("cpu")).philox(torch.arange(world), stream)[0]
    return (int(words.argsort(stable=True)[key.rank]) << 16) // world


def _centre(terms: int) -> int:
    """What makes the sum of `terms` stratified dithers vanish on average.

    In units of 2^-17 steps it is terms * (2^16 - 1) less twice the sum of the shifts,
    sum_j floor(2^16 j / terms) = ((2^16 - 1) (terms - 1) + gcd(2^16, terms) - 1) / 2.
    """
    return (1 << 16) - math.gcd(1 << 16, terms)
