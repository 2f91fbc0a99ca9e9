r"""FFT sparsification: keep the largest coefficients of the spectrum, in floats of N bits.

Each block v of B values is turned by an orthonormal real transform T, the largest (1 - theta) of
all coefficients of the tensor are kept, and those are rounded to N-bit floats whose exponents
are fitted to the largest one:

    c = T v,   kept = the (1 - theta) n largest |c_i|,   v^ = T' Q(c restricted to kept)      (1)
    |v - v^|^2 = sum_{dropped} c_i^2 + sum_{kept} (c_i - Q(c_i))^2            (Parseval)      (2)
    |Q(c) - c| <= 2^-(m+1) |c|   for |c| >= eps, m mantissa bits                              (3)

T is linear, so the mean over workers is taken of the coefficients, and turned back once. For
SGD with rate eta_t on an L-smooth function, theta_t^2 = L eta_t gives the rate of SGD; a theta
that stays leaves a floor of its square.

L. Wang, W. Wu, J. Zhang, H. Liu, G. Bosilca, M. Herlihy, R. Fonseca, "FFT-based Gradient
Sparsification for the Distributed Training of Deep Neural Networks", HPDC 2020,
doi:10.1145/3369583.3392681, arXiv:1811.08596: the pipeline of FFT, top-k, range-based floats
and packing.

    paper          here
    theta          `drop`
    N, m, eps, P   `bits`, `mantissa`; see kernels/formats/rangefloat.py
    F = FFT(v)     c, the real and imaginary parts as values of their own; see `transforms.py`

Differences from the paper: blocks instead of one long transform, for speed, and so that one NaN
spoils one block. Real and imaginary parts are selected each on its own, not as pairs: with
places in Rice's code that loses less at the same size. Transforms are in float32, not float16.
Values are rounded to nearest. Error feedback is on by default, and then theta need not diminish.
The domain may also be the DCT's or the plain vector ("time"), or be chosen for each tensor by
the energy kept, "auto": white gradients have no spectrum to speak of, and the FFT then loses
more than plain top-k. Derivations and measured tables: docs/codecs/fft.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels, scratch
from gradwire.codec import Seen
from gradwire.codecs.fft.drop import check_drop, drop_at, least_drop
from gradwire.codecs.fft.sparse import SparseCoding
from gradwire.codecs.fft.transforms import DOMAINS, forward, inverse
from gradwire.codecs.settings import SpelledCodec
from gradwire.key import Key

_MAX_BLOCK = 1 << 16
_SAMPLE = 1024
"""Blocks that "auto" looks at: all of a vector that has no more, else so many, evenly spaced."""


@dataclass(frozen=True)
class FFTSparse(SpelledCodec):
    """Keep the largest coefficients of each tensor's spectrum.

    drop: the fraction dropped, or a schedule such as "0.9@0/0.5@1000" or "0.9*cosine@10000";
        see codecs/fft/drop.py.
    bits: 3 to 16 for a kept coefficient, sign included; None for float32.
    mantissa: how many of them are mantissa; the others reach 2^(bits - 1 - mantissa) octaves.
    domain: "fft", "dct", "time", or "auto" for the one that keeps most energy of each tensor.
    block: values to a transform, a power of two.
    wire: "packed" or "zstd".

    >>> import torch, gradwire as gw
    >>> codec = gw.FFTSparse(drop=0.75)
    >>> x = 8 * torch.cos(torch.arange(16) * torch.pi / 4) + 1
    >>> codec.decode(codec.encode(x, gw.Key()), 16, gw.Key())[:4].round(decimals=1)
    tensor([ 9.0000,  6.6000,  1.0000, -4.6000])
    """

    drop: float | str = 0.85
    bits: int | None = 10
    mantissa: int = 5
    domain: str = "fft"
    block: int = 256
    wire: str = "packed"

    unbiased = False
    fixed_size = False
    collective = "all_gather"  # encoding the mean once more would lose energy that no one keeps
    name = "fft"

    def __post_init__(self) -> None:
        check_drop(self.drop)
        self._check_float()
        if self.domain not in (*DOMAINS, "auto"):
            raise ValueError(
                f'`domain` must be "fft", "dct", "time" or "auto", got {self.domain!r}.'
            )
        block = self.block
        if not isinstance(block, int) or not 8 <= block <= _MAX_BLOCK or block & (block - 1):
            raise ValueError(
                f"`block` must be a power of two from 8 to {_MAX_BLOCK}, got {block!r}."
            )
        if self.wire not in ("packed", "zstd"):
            raise ValueError(f'`wire` must be "packed" or "zstd", got {self.wire!r}.')

    def _check_float(self) -> None:
        if self.bits is None:
            return
        if not isinstance(self.bits, int) or not 3 <= self.bits <= 16:
            raise ValueError(
                f"`bits` must be an integer from 3 to 16, or None for float32, got {self.bits!r}."
            )
        least, most = max(1, self.bits - 8), self.bits - 2
        if not isinstance(self.mantissa, int) or not least <= self.mantissa <= most:
            raise ValueError(
                f"`mantissa` must be from {least} to {most} with `bits={self.bits}`, which leaves "
                f"1 to 7 bits of exponent beside the sign, got {self.mantissa!r}."
            )

    @property
    def grain(self) -> int | None:
        """The threshold is that of the whole tensor."""
        return None

    def num_kept(self, numel: int, step: int) -> int:
        """How many coefficients of `numel` are kept at `step`: never none."""
        return _count(numel, drop_at(self.drop, step))

    def max_nbytes(self, numel: int) -> int:
        """A bound: how many bytes say where the coefficients are depends on where they are."""
        return self._coding.max_nbytes(numel, _count(numel, least_drop(self.drop)))

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        """Of `key`, only the step matters."""
        kept = self.num_kept(x.numel(), key.step)
        domain = self._best_domain(x, key.step) if self.domain == "auto" else self.domain
        coefficients = _coefficients(x.numel(), x.device)
        forward(domain, x, coefficients, self.block)
        return self._coding.encode(coefficients, kept, DOMAINS.index(domain), out)  # eq. (1)

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        self._add([payload], out, weight) if accumulate else self._sum([payload], out, weight)

    def mean_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> Seen:
        """Sum the coefficients of all workers, and turn them back once."""
        self._sum(payloads, out, 1.0 / len(payloads))
        return ()

    def _sum(self, payloads: Sequence[Tensor], out: Tensor, weight: float) -> None:
        """Sum in `out`; who has chosen another domain than the first is added afterwards."""
        domains = [self._coding.domain(payload, out.numel()) for payload in payloads]
        others, domain = [], DOMAINS[domains[0]]
        out.zero_()
        for payload, chosen in zip(payloads, domains, strict=True):
            if chosen == domains[0]:
                self._coding.read(payload, out.numel()).add_to(out)
            else:
                others.append(payload)
        inverse(domain, out, out, self.block, weight=weight)
        self._add(others, out, weight)

    def _add(self, payloads: Sequence[Tensor], out: Tensor, weight: float) -> None:
        """Turn back and add one after the other, in pieces, so that it takes no room."""
        for payload in payloads:
            kept = self._coding.read(payload, out.numel())
            for start, stop, add in kept.pieces():
                piece = _coefficients(stop - start, out.device).zero_()
                add(piece)
                inverse(
                    DOMAINS[kept.domain], piece, out[start:stop], self.block,
                    weight=weight, accumulate=True,
                )  # fmt: skip

    def _best_domain(self, x: Tensor, step: int) -> str:
        """The domain whose largest coefficients hold most of the energy."""
        sample = _sample(x, self.block)
        kept = self.num_kept(sample.numel(), step)
        norms = {domain: _kept_norm(domain, sample, kept, self.block) for domain in DOMAINS}
        return max(norms, key=norms.__getitem__)

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """A head, the coefficients, and where they are."""
        return self._coding.anatomy(payload, numel)

    @property
    def _coding(self) -> SparseCoding:
        return SparseCoding(self.bits, self.mantissa, self.block, self.wire == "zstd")


def _count(numel: int, drop: float) -> int:
    return min(numel, max(1, round((1.0 - drop) * numel)))


def _sample(x: Tensor, block: int) -> Tensor:
    """A few blocks of `x` as float32, those that are not finite as zeros."""
    whole = x.numel() // block
    if x.numel() > _SAMPLE * block:
        rows = torch.arange(_SAMPLE, device=x.device) * whole // _SAMPLE
        x = x[: whole * block].view(whole, block)[rows].view(-1)
    parts = torch.split(x.float(), block)
    return torch.cat([p if p.isfinite().all() else torch.zeros_like(p) for p in parts])


def _kept_norm(domain: str, x: Tensor, kept: int, block: int) -> float:
    """The norm of the `kept` largest coefficients, to the same bit on every processor."""
    if not kept:
        return 0.0
    kernel, coefficients = kernels.for_device(x.device), torch.empty_like(x)
    forward(domain, x, coefficients, block)
    threshold, _ = kernel.find_threshold(coefficients, kept)
    dropped = coefficients.view(torch.int32).bitwise_and(0x7FFFFFFF) < threshold
    norm = torch.empty(1)
    kernel.block_scales(coefficients.masked_fill_(dropped, 0.0), norm, block=None, norm="l2")
    return float(norm)


def _coefficients(numel: int, device: torch.device) -> Tensor:
    return scratch.of_thread().take("coefficients", numel, torch.float32, device)
