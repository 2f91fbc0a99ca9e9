r"""Global-QSGD: levels of a norm that all workers share, so that integers are summed.

For the vectors x_1 ... x_n of n workers, and in each block the norm they agree on,

    |x|_{q,p} = (sum_i |x_i|_q^p)^(1/p),   p or q = inf: the maximum                         (1)
    G(x) = |x|_{q,p} / (s n) * sum_i z_i,   z_i = floor(s x_i / |x|_{q,p} + u_i)             (2)

with u_i ~ U[0, 1), so that E G(x) = mean(x). Norms are agreed in one small all-reduce. The sum in
(2) is made by the owners of shards, who are sent codes just wide enough for s and send totals just
wide enough for n s, or by the backend's own all-reduce, over fields just wide enough for n s
(`kernels/formats/fields.py`).
G is QSGD of the concatenated vectors, averaged, so with p = q = 2 and d values in a block:

    E |G(x) - mean(x)|^2  = (|x|_{2,2} / (n s))^2 sum_i p_i (1 - p_i)                        (3)
                         <= min(nd / s^2, sqrt(nd) / s) |x|_{2,2}^2 / n^2                    (4)
    E nonzeros           <= s (s + sqrt(nd))      of all workers together                    (5)

`dither="subtractive"` is ours: the receiver knows every u_i and subtracts it,

    G(x) = |x| / (s n) * sum_i (z_i - u_i + 1/2),                                            (6)

which turns the error of every worker's value into uniform noise of variance 1/12 of a step, half
of what p (1 - p) is on average, for no bit more. The u_i are stratified over the workers,

    u_i = (u + pi(i) / n) mod 1,   sum_i u_i = (n u mod 1) + (n - 1) / 2,                    (7)

with one common u and a permutation pi that changes with every step and parameter, so that one
random number undoes n dithers. The more alike the vectors, the more their errors cancel: the
mean's is 1 / (12 n) steps^2 for independent ones, and 1 / (12 n^2) for equal ones, since
sum_j floor(y + j / n) = floor(n y).

J. Xin, M. Canini, P. Richtarik, S. Horvath, "Global-QSGD: Allreduce-Compatible Quantization for
Distributed Learning with Theoretical Guarantees", EuroMLSys 2025, arXiv:2305.18627.

    paper              here
    n, d               workers (`world`), values in a block
    s                  `num_levels`
    |x|_{q,p}          `norm`: "max" is q = p = inf, "l2" is q = p = 2, "l2-max" and "max-l2"
                       name q and p
    Global-L_s         `dither="linear"`

Differences from the paper: a norm for every block of 512 values, not one for a DDP bucket of
25 MB; `block=None` is one for each parameter. Every worker has all s levels, whatever n is: the
sums grow by log2 n bits instead. Any n, not powers of two. Derivations and measured tables:
docs/codecs/global_qsgd.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import NOTHING, NetworkAdder, SummableCodec
from gradwire.codecs.global_qsgd.exponential import ExponentialAdder
from gradwire.codecs.scaled import ScaledAdder
from gradwire.codecs.settings import ResolvedCodec, check_size, sizes_up_to
from gradwire.codecs.uniform import FieldAdder, Grid, UniformAdder
from gradwire.kernels.exact import sqrt
from gradwire.kernels.formats.layout import MIN_SCALE, check_block, grain_of, num_blocks
from gradwire.key import Key

_NORMS = {
    "max": ("max", "max"),
    "l2": ("l2", "sum"),
    "l2-max": ("l2", "max"),
    "max-l2": ("max", "sum"),
}
"""`norm` to the norm of a block, and how the workers' norms, or their squares, are combined."""
_DITHERS = ("exponential", "linear", "subtractive")
_LEAST_SQUARE, _MOST_SQUARE = 2.0**-120, 2.0**116
"""Squares that float32 has room for: none is subnormal, and 2048 workers may add theirs."""


@dataclass(frozen=True)
class GlobalQSGD(ResolvedCodec, SummableCodec):
    """Quantize with scales that all workers share, and combine the codes as they are.

    bits: 2 to 8, one of them the sign; fewer are coarser. `levels` (1 to 127) overrides it.
    norm: "max", "l2", "l2-max" or "max-l2": that of a block, and that over the workers.
    block: values that share a scale; smaller is finer and costs 32 / block more bits per value.
    dither: "linear", as in the paper; "subtractive", which has half its error or less; or
        "exponential", for powers of two, whose error is relative to the value, and which the
        network cannot sum.

    >>> import torch, gradwire as gw
    >>> vectors = [torch.tensor([1.0, -2.0, 0.0, 4.0]), torch.tensor([3.0, -2.0, 0.0, 0.0])]
    >>> gw.simulate(gw.GlobalQSGD(bits=4), vectors, gw.Key(seed=1))
    tensor([ 2.2857, -2.0000,  0.0000,  2.0000])
    """

    bits: int = 4
    levels: int | None = None
    norm: str = "max"
    block: int | None = 512
    dither: str = "linear"

    unbiased = True
    name = "global-qsgd"

    def __post_init__(self) -> None:
        self._resolve()
        if self.norm not in _NORMS:
            raise ValueError(f"`norm` must be one of {', '.join(_NORMS)}, got {self.norm!r}.")
        if self.dither not in _DITHERS:
            raise ValueError(f"`dither` must be one of {', '.join(_DITHERS)}, got {self.dither!r}.")
        if self.dither == "exponential" and self.levels is not None:
            raise ValueError(
                f"exponential levels are powers of two, as many as `bits` leave, got "
                f"`levels={self.levels}`; give `bits`."
            )
        check_block(self.block)

    @property
    def grain(self) -> int | None:
        return grain_of(self.block)

    @property
    def statistics_op(self) -> str:  # type: ignore[override]
        """The paper's outer norm: the maximum, or a sum of squares."""
        return _NORMS[self.norm][1]

    def statistics(self, x: Tensor) -> Tensor:
        """The norm of every block or its square, +inf where a value is not finite: eq. (1)."""
        norms = torch.empty(num_blocks(x.numel(), self.block), device=x.device)
        kernel = kernels.for_device(x.device)
        kernel.block_scales(x, norms, block=self.block, norm=_NORMS[self.norm][0])
        if self.statistics_op == "sum":  # too small squares are zeros, not less than they are
            norms.square_().clamp_max_(_MOST_SQUARE)
            norms.masked_fill_(norms < _LEAST_SQUARE, 0.0)
        return norms.nan_to_num_(nan=torch.inf)

    def adder(self, world: int, shared: Tensor = NOTHING) -> ScaledAdder:
        return self._adder(world, self._scales(shared))

    def network_adder(self, world: int, shared: Tensor = NOTHING) -> NetworkAdder | None:
        if self.dither == "exponential":
            return None
        return FieldAdder(self._grid, world, self._scales(shared))

    def _adder(self, world: int, scales: Tensor) -> ScaledAdder:
        if self.dither == "exponential":
            return ExponentialAdder(self, world, scales)
        return UniformAdder(self._grid, world, scales)

    @property
    def _grid(self) -> Grid:
        return Grid(self.num_levels, self.block, self.dither == "subtractive")

    def _scales(self, shared: Tensor) -> Tensor:
        """The common scales: the root of eq. (1), NaN where a value was not finite."""
        scales = shared if self.statistics_op == "max" else sqrt(shared)
        return scales.masked_fill(scales.isinf(), torch.nan).clamp_min(MIN_SCALE)

    def max_nbytes(self, numel: int) -> int:
        """A payload is its own scales, and the codes of a world of one."""
        return 4 * num_blocks(numel, self.block) + self._adder(1, NOTHING).code_nbytes(numel)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        size = self.max_nbytes(x.numel())
        scales, codes = self._split(out[:size], x.numel())
        self._adder(1, scales).quantize(x, codes, key, offset, norm=_NORMS[self.norm][0])
        return size

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        check_size(payload, self.max_nbytes(out.numel()))
        aligned = payload.clone() if payload.data_ptr() % 4 else payload
        scales, codes = self._split(aligned, out.numel())
        self._adder(1, scales).dequantize(
            codes, out, key, offset, total=True, weight=weight, accumulate=accumulate
        )

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        return sizes_up_to("codes", payload, scales=4 * num_blocks(numel, self.block))

    def _split(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Its scales and its codes."""
        size = 4 * num_blocks(numel, self.block)
        return payload[:size].view(torch.float32), payload[size:]
