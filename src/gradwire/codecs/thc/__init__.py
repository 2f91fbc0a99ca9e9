r"""THC: all workers rotate alike and round to one grid, and the sum of integers is rotated back.

A block x_r of B values of worker r is rotated, y_r = R x_r, with the same R for all. Its values are
then nearly those of a Gaussian of deviation |x_r| / sqrt(B), whatever x_r was, so one number says
where they lie. Workers agree on the largest in one small all-reduce, and on a grid of 2^b levels,

    m = t max_r |x_r| / sqrt(B),   D = 2 m / (2^b - 1)                                       (1)
    z_r = floor(clip(f_r y_r, m) / D + u_r),   mean_r x'_r = R^-1 D / n sum_r (z_r - u_r + 1/2)
                                                                                             (2)

where clip(y, m) keeps y within +-m, and u_r is the stratified dither of Global-QSGD, eq. (7) there.
The z_r are integers and a half, in b bits; their sum takes log2 n bits more, and is all that anyone
decodes. t is a constant for b bits: a wider grid clips less and is coarser.

What is clipped biases, so values are raised before. With s for where a Gaussian block is cut, in
its own deviations, and P(s) = erf(s / sqrt(2)) for the share of its values within,

    f_r = 1 / P(s),   f_r s = t max_q |x_q| / |x_r|                                          (3)

makes <clip(f_r y_r, m), y_r> = |y_r|^2 on average. What is clipped is then an error at right angles
to x_r, with no preferred direction over rotations, as in EDEN, and E x'_r = x_r. With its energy
and that of the dither, over |x_r|^2,

    E |x'_r - x_r|^2 / |x_r|^2 = E clip(f_r g, m_r)^2 - 1 + m_r^2 / (3 (2^b - 1)^2)          (4)

for a Gaussian g and m_r = t max_q |x_q| / |x_r|: 0.798, 0.148, 0.0401 and 0.0118 for 1 to 4 bits if
norms are equal. The second part is divided by n for a mean, and by n^2 for that of equal vectors;
the first by n if what workers clip is independent, and not at all if they are equal.

M. Li, R. Ben Basat, S. Vargaftik, C. Lao, K. Xu, M. Mitzenmacher, M. Yu, "THC: Accelerating
Distributed Deep Learning Using Tensor Homomorphic Compression", NSDI 2024, arXiv:2302.08545.

    paper                       here
    b                           `bits`
    n                           workers, `world`
    d, padded                   values in a block, `block`
    RHT                         two stages of it: `kernels/formats/rotation.py`
    [m, M]                      +-m; what is sent to agree on it is a norm, as there
    t_p, of p = 1/32            t, `reach`: that of the least error (4) for the bits
    T, the lookup table         none: levels are at equal distances
    g, granularity              2^b - 1

Differences from the paper: it clips a share p of the values, 1/32, keeps what that loses as a
residual, and needs error feedback; eq. (3) makes the codec unbiased. It rounds at random and has
levels at unequal distances to make up for it; that a receiver knows the dither halves the error of
equal ones, which beats the table in fewer bits, as its sums grow by g instead of 2^b. Blocks have a
rotation and a grid each, instead of a vector. Derivations and measured tables: docs/codecs/thc.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codec import NOTHING, NetworkAdder, SummableCodec
from gradwire.codecs.coding import as_float
from gradwire.codecs.settings import SpelledCodec, check_size, sizes_up_to
from gradwire.codecs.thc.adder import NetworkTurnedAdder, TurnedAdder, statistics
from gradwire.kernels.formats.layout import num_blocks
from gradwire.kernels.formats.rotation import check_block
from gradwire.key import Key

REACH = {1: 1.38, 2: 1.74, 3: 2.15, 4: 2.55, 5: 2.93, 6: 3.28, 7: 3.61, 8: 3.92}
"""The t of eq. (1) with the least error (4), by bits."""


@dataclass(frozen=True)
class THC(SpelledCodec, SummableCodec):
    """Rotate every block alike on all workers, and add integers on a grid that they share.

    bits: 1 to 8; fewer are coarser.
    block: values that are rotated together and share a scale, a power of two from 512 to 4096.

    >>> import torch, gradwire as gw
    >>> vectors = [torch.arange(50_000.0), torch.ones(50_000)]
    >>> mean = gw.simulate(gw.THC(bits=4), vectors, gw.Key(seed=1))
    >>> x = (vectors[0] + vectors[1]) / 2
    >>> round(float((mean - x).square().sum() / x.square().sum()), 3)
    0.021
    """

    bits: int = 4
    block: int = 1024

    unbiased = True
    name = "thc"

    def __post_init__(self) -> None:
        bits = self.bits
        if not isinstance(bits, int) or isinstance(bits, bool) or bits not in REACH:
            raise ValueError(f"`bits` must be an integer from 1 to 8, got {bits!r}.")
        check_block(self.block)

    @property
    def grain(self) -> int | None:
        return self.block

    @property
    def num_levels(self) -> float:
        """On each side of zero, which is none."""
        return ((1 << self.bits) - 1) / 2

    @property
    def reach(self) -> float:
        """How many deviations of a block the grid has on each side."""
        return REACH[self.bits]

    def statistics(self, x: Tensor) -> Tensor:
        """Where the grid would end for these blocks, +inf where a value is not finite: eq. (1)."""
        return statistics(self, x).nan_to_num_(nan=torch.inf)

    def adder(self, world: int, shared: Tensor = NOTHING) -> TurnedAdder:
        return TurnedAdder(self, world, _scales(shared))

    def network_adder(self, world: int, shared: Tensor = NOTHING) -> NetworkAdder | None:
        return NetworkTurnedAdder(self, world, _scales(shared))

    def max_nbytes(self, numel: int) -> int:
        """A payload is its own scales, and the codes of a world of one."""
        return self._scale_nbytes(numel) + TurnedAdder(self, 1, NOTHING).code_nbytes(numel)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        size, split = self.max_nbytes(x.numel()), self._scale_nbytes(x.numel())
        adder = TurnedAdder(self, 1, out[:split].view(torch.float32))
        adder.quantize(x, out[split:size], key, offset, norm="l2")
        return size

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        check_size(payload, self.max_nbytes(out.numel()))
        split = self._scale_nbytes(out.numel())
        TurnedAdder(self, 1, as_float(payload[:split])).dequantize(
            payload[split:], out, key, offset, total=True, weight=weight, accumulate=accumulate
        )

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        return sizes_up_to("codes", payload, scales=self._scale_nbytes(numel))

    def _scale_nbytes(self, numel: int) -> int:
        return 4 * num_blocks(numel, self.block)


def _scales(shared: Tensor) -> Tensor:
    """The common scales, NaN where a value was not finite."""
    return shared.masked_fill(shared.isinf(), torch.nan)
