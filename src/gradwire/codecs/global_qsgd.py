r"""Global-QSGD: levels of a norm that all workers share, so that the network sums integers.

For the vectors x_1 ... x_n of n workers, and in each block the norm they agree on,

    |x|_{q,p} = (sum_i |x_i|_q^p)^(1/p),   p or q = inf: the maximum                         (1)
    G(x) = |x|_{q,p} / (s n) * sum_i z_i,   z_i = floor(s x_i / |x|_{q,p} + u_i)             (2)

with u_i ~ U[0, 1), so that E G(x) = mean(x). Norms are agreed in one small all-reduce; the sum in
(2) is the backend's own all-reduce, over fields just wide enough for n s (`kernels/fields.py`).
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
fields grow by log2 n bits instead. Any n, not powers of two. Derivations and measured tables:
docs/codecs/global_qsgd.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Key, SummableCodec, check_size
from gradwire.codecs.resolution import most_levels, resolve
from gradwire.kernels.fields import Dither, field_width, num_words
from gradwire.kernels.layout import MIN_SCALE, TILE, check_block, num_blocks

_NORMS = {"max": ("max", "max"), "l2": ("l2", "sum"), "l2-max": ("l2", "max"),
          "max-l2": ("max", "sum")}  # fmt: skip
"""`norm` to the norm of a block, and how the workers' norms, or their squares, are combined."""
_DITHERS = ("linear", "subtractive")
_LEAST_SQUARE = 2.0**-120
_PERMUTATION_HOP = 255
"""The random stream that permutes the workers: no message is encoded with it."""


@dataclass(frozen=True)
class GlobalQSGD(SummableCodec):
    """Quantize with scales that all workers share; the network sums the codes.

    bits: 2 to 8, one of them the sign; fewer are coarser. `levels` (1 to 127) overrides it.
    norm: "max", "l2", "l2-max" or "max-l2": that of a block, and that over the workers.
    block: values that share a scale; smaller is finer and costs 32 / block bits a value more.
    dither: "linear", as in the paper, or "subtractive", which has half its error or less.

    >>> import torch, gradwire as gw
    >>> vectors = [torch.tensor([1.0, -2.0, 0.0, 4.0]), torch.tensor([3.0, -2.0, 0.0, 0.0])]
    >>> gw.simulate(gw.GlobalQSGD(bits=4), vectors, gw.Key(seed=1))
    tensor([ 1.7143, -2.0000,  0.0000,  2.0000])
    """

    bits: int = 4
    levels: int | None = None
    norm: str = "max"
    block: int | None = 512
    dither: str = "linear"

    unbiased = True
    name = "global-qsgd"
    sum_dtype = torch.int32

    def __post_init__(self) -> None:
        bits, levels = resolve(self.bits, self.levels)
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "levels", levels)
        if self.norm not in _NORMS:
            raise ValueError(f"`norm` must be one of {', '.join(_NORMS)}, got {self.norm!r}.")
        if self.dither not in _DITHERS:
            raise ValueError(f"`dither` must be one of {', '.join(_DITHERS)}, got {self.dither!r}.")
        check_block(self.block)

    def settings(self) -> dict[str, Any]:
        """As for any codec, but the resolution is always said."""
        resolution = {"levels": self.levels} if self.levels else {"bits": self.bits}
        rest = {k: v for k, v in super().settings().items() if k not in ("bits", "levels")}
        return resolution | rest

    @property
    def num_levels(self) -> int:
        """The paper's s."""
        return self.levels or most_levels(self.bits)

    @property
    def grain(self) -> int | None:
        """Blocks and tiles stay whole."""
        return None if self.block is None else max(self.block, TILE)

    @property
    def statistics_op(self) -> str:  # type: ignore[override]
        """The paper's outer norm: the maximum, or a sum of squares."""
        return _NORMS[self.norm][1]

    def max_nbytes(self, numel: int) -> int:
        """The scales, and the term of a world of one."""
        return 4 * num_blocks(numel, self.block) + self.term_nbytes(numel, 1)

    def encode_into(
        self, x: Tensor, out: Tensor, key: Key, offset: int = 0, *, world: int = 1
    ) -> int:
        """See `Codec.encode_into`: a payload is to be decoded on its own, and shares nothing."""
        size = self.max_nbytes(x.numel())
        scales, words = self._split(out[:size], x.numel())
        kernels.select(x.device).quantize_fields(
            x, scales, words, levels=self.num_levels, width=self.bits, block=self.block,
            norm=_NORMS[self.norm][0], key=key, offset=offset,
        )  # fmt: skip
        return size

    def decode_into(
        self,
        payload: Tensor,
        out: Tensor,
        key: Key,
        offset: int = 0,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """See `Codec.decode_into`."""
        check_size(payload, self.max_nbytes(out.numel()))
        scales, words = self._split(payload, out.numel())
        dither = Dither(key, offset, 1, 0, _centre(1))
        self._decode(scales, words, out, 1, dither, weight=weight, accumulate=accumulate)

    def _split(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """The scales of a payload and its words, copied where it starts at an odd address."""
        words = (payload.clone() if payload.data_ptr() % 4 else payload).view(torch.int32)
        num_scales = num_blocks(numel, self.block)
        return words[:num_scales].view(torch.float32), words[num_scales:]

    def statistics(self, x: Tensor) -> Tensor:
        """The norm of every block or its square, +inf where a value is not finite: eq. (1)."""
        norms = torch.empty(num_blocks(x.numel(), self.block), device=x.device)
        kernels.select(x.device).block_scales(x, norms, block=self.block, norm=_NORMS[self.norm][0])
        norms.nan_to_num_(nan=torch.inf, posinf=torch.inf)
        return norms if self.statistics_op == "max" else _flushed(norms.square_())

    def term_nbytes(self, numel: int, world: int) -> int:
        """Fields of just enough bits for the sum of `world` codes."""
        return 4 * num_words(numel, field_width(self.num_levels, world))

    def encode_term(
        self, x: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """See `SummableCodec.encode_term`: eq. (2)."""
        stream, shift = key, 0
        if self.dither == "subtractive":
            stream, shift = key.of(rank=0), _shift(key, world)
        kernels.select(x.device).quantize_fields(
            x, self._scales(shared), out.view(torch.int32), levels=self.num_levels,
            width=field_width(self.num_levels, world), block=self.block, norm=None, key=stream,
            offset=offset, shift=shift,
        )  # fmt: skip

    def decode_sum(
        self, total: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """See `SummableCodec.decode_sum`: eq. (2), or (6) with the sum of dithers of (7)."""
        scales, words = self._scales(shared), total.view(torch.int32)
        dither = Dither(key.of(rank=0), offset, world, 0, _centre(world))
        self._decode(scales, words, out, world, dither, terms=world, weight=1 / world)

    def subtract_term(
        self, term: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """See `SummableCodec.subtract_term`."""
        scales, words = self._scales(shared), term.view(torch.int32)
        dither = Dither(key.of(rank=0), offset, 1, _shift(key, world), _centre(1))
        self._decode(scales, words, out, world, dither, weight=-1.0, accumulate=True)

    def _scales(self, shared: Tensor) -> Tensor:
        """The common scales: the root of eq. (1), NaN where a value was not finite."""
        scales = shared if self.statistics_op == "max" else shared.sqrt()
        return scales.masked_fill(scales.isinf(), torch.nan).clamp_min(MIN_SCALE)

    def _decode(
        self, scales: Tensor, words: Tensor, out: Tensor, world: int, dither: Dither, **how: Any
    ) -> None:
        kernels.select(out.device).dequantize_fields(
            scales, words, out, levels=self.num_levels, width=field_width(self.num_levels, world),
            block=self.block, dither=dither if self.dither == "subtractive" else None, **how,
        )  # fmt: skip


def _flushed(squares: Tensor) -> Tensor:
    """Squares too small for float32 to hold precisely count as zeros, and never as too little."""
    return squares.masked_fill_(squares < _LEAST_SQUARE, 0.0)


def _shift(key: Key, world: int) -> int:
    """This worker's pi(i) / n of eq. (7), in 2^-16; all workers derive the same permutation."""
    if world == 1:
        return 0
    stream = key.of(rank=0, hop=_PERMUTATION_HOP)
    words = kernels.select(torch.device("cpu")).philox(torch.arange(world), stream)[0]
    return (int(words.argsort(stable=True)[key.rank]) << 16) // world


def _centre(terms: int) -> int:
    """What makes the sum of `terms` stratified dithers vanish on average.

    In units of 2^-17 steps it is terms * (2^16 - 1) less twice the sum of the shifts,
    sum_j floor(2^16 j / terms) = ((2^16 - 1) (terms - 1) + gcd(2^16, terms) - 1) / 2.
    """
    return (1 << 16) - math.gcd(1 << 16, terms)
