r"""Exponential Global-QSGD: powers of two of the common norm, added as they are.

With the norm |x| of `__init__.py`, eq. (1), every value is rounded at random to the power of two
below or above it, and what is below the least one to that or to zero:

    E(x)_i = |x| sgn(x_i) 2^-j,   j from 0 to J,   E E(x) = x                                (8)

Two codes have a sum in the same kind of code. With c the exponent of the larger one, its sign,
and k the difference of the exponents:

    same signs:      2^-c (1 + 2^-k)  to 2^-(c-1) with probability 2^-k, else 2^-c           (9)
    opposite signs:  2^-c (1 - 2^-k)  to 2^-(c+1) with probability 2^-(k-1), else 2^-c      (10)

and equal ones of opposite signs cancel. Nothing underflows in (10): if c + 1 were below the least
power, so would be the smaller operand. Rounding to powers of two makes a second moment at most
9 / 8 as large, so that for values of one sign, with a tree of depth ceil(log2 n),

    E G(x)^2 <= (9 / 8)^(1 + ceil(log2 n)) mean(x)^2,  if no |x_i| is below |x| 2^-J        (11)

and in general with mean(|x|)^2 at the right. Since a sum of n is up to n times as large, codes
have ceil(log2 n) doublings of headroom, which b bits pay for with their range:
J = 2^(b-1) - 2 - ceil(log2 n).

The reference is that of `global_qsgd/__init__.py`: Global-E_s there, and its reduce.

    paper                       here
    s                           J + 1
    bit 7, c = bits 6 to 0      the same at `bits=8`; in general the highest bit and the others

Differences from the paper: values that underflow are rounded without bias, where its code raises
them to the least power. The norm is that of (1) and the headroom is in the exponent, where its
code divides by 2 n. Any n, not powers of two; 2 to 8 bits; a reduce-scatter and all-gather of
codes (`collectives.code_reduce`), so that a worker sends about two terms however many workers
there are, not a tree of whole vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from gradwire import kernels
from gradwire.codecs.scaled import ScaledAdder
from gradwire.codecs.settings import most_levels
from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.key import Hop, Key

if TYPE_CHECKING:
    from gradwire.codecs.global_qsgd import GlobalQSGD


class ExponentialAdder(ScaledAdder):
    """Powers of two: two codes have a sum in the same kind of code, rounded at random."""

    def __init__(self, codec: GlobalQSGD, world: int, scales: Tensor) -> None:
        super().__init__(world, scales)
        self._bits, self._block = codec.bits, codec.block
        self._headroom = (world - 1).bit_length()  # doublings that a sum of codes may need
        if self._headroom + 1 > most_levels(self._bits):
            least = (self._headroom + 1).bit_length() + 1
            raise ValueError(
                f"exponential codes of {self._bits} bits have no room for a sum of {world} "
                f'workers; use `bits={least}` or more, or `dither="linear"`.'
            )

    def code_nbytes(self, numel: int) -> int:
        return packed_nbytes(numel, self._bits)

    def total_nbytes(self, numel: int) -> int:
        return packed_nbytes(numel, self._bits)

    def add(self, codes: Tensor, total: Tensor, numel: int, key: Key, offset: int = 0) -> None:
        """Neighbours, then neighbours of those, and so on."""
        stride = 1
        while stride < len(codes):
            for rank in range(stride, len(codes), 2 * stride):
                own = key.of(rank=rank, hop=Hop.TOTAL)
                self.add_two(codes[rank - stride], codes[rank], own, offset)
            stride *= 2
        total.copy_(codes[0])

    def add_two(self, into: Tensor, code: Tensor, key: Key, offset: int = 0) -> None:
        """Replace `into` by a code of its sum with `code`: eq. (9) and (10)."""
        kernel = kernels.for_device(into.device)
        kernel.exp_reduce(into, code, width=self._bits, key=key, offset=offset)

    def quantize(
        self, x: Tensor, codes: Tensor, key: Key, offset: int, *, norm: str | None = None
    ) -> None:
        kernels.for_device(x.device).exp_quantize(  # eq. (8)
            x, self.scales, codes, width=self._bits, headroom=self._headroom,
            block=self._block, norm=norm, key=key, offset=offset,
        )  # fmt: skip

    def dequantize(
        self, codes: Tensor, out: Tensor, key: Key, offset: int, *,
        total: bool, weight: float, accumulate: bool = False,
    ) -> None:  # fmt: skip
        kernels.for_device(out.device).exp_dequantize(
            self.scales, codes, out, width=self._bits, headroom=self._headroom,
            block=self._block, weight=weight, accumulate=accumulate,
        )  # fmt: skip
