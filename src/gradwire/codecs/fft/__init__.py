r"""FFT sparsification: keep the largest coefficients of the spectrum, in floats of N bits.

Each block v of B values is turned by an orthonormal real transform T, the (1 - theta) B largest of
its coefficients are kept, and those are rounded to N-bit floats whose exponents are fitted to the
largest one of the block:

    c = T v,   kept = the (1 - theta) B largest |c_i|,   v^ = T' Q(c restricted to kept)      (1)
    |v - v^|^2 = sum_{dropped} c_i^2 + sum_{kept} (c_i - Q(c_i))^2            (Parseval)      (2)
    |Q(c) - c| <= 2^-(m+1) |c|   for |c| >= eps, m mantissa bits                              (3)

T is linear, so spectra of workers are added as they are. Two workers send each other theirs. Among
more, owners of stretches add spectra, keep what is large of the mean, and send that to all
(`collectives/relay.py`); what they leave out they owe. For SGD with rate eta_t on an L-smooth
function, theta_t^2 = L eta_t gives the rate of SGD; a theta that stays leaves a floor of its
square.

L. Wang, W. Wu, J. Zhang, H. Liu, G. Bosilca, M. Herlihy, R. Fonseca, "FFT-based Gradient
Sparsification for the Distributed Training of Deep Neural Networks", HPDC 2020,
doi:10.1145/3369583.3392681, arXiv:1811.08596: the pipeline of FFT, top-k, range-based floats
and packing.

    paper          here
    theta          `drop`
    N, m, eps, P   `bits`, `mantissa`; see kernels/formats/rangefloat.py
    F = FFT(v)     c, the real and imaginary parts as values of their own; kernels/protocol

Differences from the paper: blocks instead of one long transform, and the largest of each block
instead of the whole tensor: optimizers such as AdamW move weights of small gradients as far as
others, and those would never be sent. It also makes one pass over memory of what took six, lets a
tensor be cut, and one NaN spoil one block. Real and imaginary parts are selected each on its own.
Transforms are in float32, not float16. Values are rounded to nearest. Where more than half is
dropped error feedback is on, and then theta need not diminish. The domain may also be the DCT's or
the plain vector ("time"), or be chosen for each tensor by the energy kept, "auto": white gradients
have no spectrum to speak of, and the FFT then loses more than plain top-k. Derivations and measured
tables: docs/codecs/fft.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels, scratch
from gradwire.codec import Seen
from gradwire.codecs.fft.drop import check_drop, drop_at, least_drop, most_drop
from gradwire.codecs.fft.sparse import SparseCoding, Spectrum, add_spectra
from gradwire.codecs.gaps import bitmap_nbytes
from gradwire.codecs.settings import SpelledCodec
from gradwire.kernels.formats.layout import TILE
from gradwire.kernels.formats.spectra import STRIP, Form, Kept
from gradwire.key import Key

DOMAINS = ("time", "fft", "dct")
_MAX_BLOCK = 1 << 16
_LITTLE = 0.5
"""The most that may be dropped for good."""
_SAMPLE = 1024
"""Blocks that "auto" looks at: all of a vector that has no more, else so many, evenly spaced."""


@dataclass(frozen=True)
class FFTSparse(SpelledCodec):
    """Keep the largest coefficients of each block's spectrum.

    drop: the fraction dropped, or a schedule such as "0.9@0/0.5@1000" or "0.9*cosine@10000";
        see codecs/fft/drop.py.
    bits: 3 to 16 for a kept coefficient, sign included; None for float32.
    mantissa: how many of them are mantissa; the others reach 2^(bits - 1 - mantissa) octaves.
    domain: "fft", "dct", "time", or "auto" for the one that keeps most energy of each tensor.
    block: values to a transform, a power of two.
    wire: "packed" or "zstd".

    >>> import torch, gradwire as gw
    >>> codec = gw.FFTSparse(drop=0.75, bits=10, mantissa=5)
    >>> x = 8 * torch.cos(torch.arange(16) * torch.pi / 4) + 1
    >>> codec.decode(codec.encode(x, gw.Key()), 16, gw.Key())[:4].round(decimals=1)
    tensor([ 9.0000,  6.6000,  1.0000, -4.6000])
    """

    drop: float | str = 0.5
    bits: int | None = 4
    mantissa: int = 1
    domain: str = "fft"
    block: int = 256
    wire: str = "packed"

    unbiased = False
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
        least, most = max(0, self.bits - 8), self.bits - 2
        if not isinstance(self.mantissa, int) or not least <= self.mantissa <= most:
            raise ValueError(
                f"`mantissa` must be from {least} to {most} with `bits={self.bits}`, which leaves "
                f"1 to 7 bits of exponent beside the sign, got {self.mantissa!r}."
            )

    @property
    def grain(self) -> int | None:
        """Where "auto" looks at a tensor it must be whole, or its parts might choose otherwise."""
        return None if self.domain == "auto" else max(STRIP * self.block, TILE)

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        """The schedule, gaps and zstd make it depend on more than the length."""
        is_steady = not isinstance(self.drop, str) and self.wire == "packed"
        return is_steady and not self._coding.has_gaps(self.count(0))

    @property
    def host_only(self) -> str:  # type: ignore[override]
        """Only the CPU compares the domains of a tensor, and how long its gaps are."""
        if self.domain == "auto":
            return "chooses a domain by what the CPU works out of each tensor"
        if self._coding.has_gaps(self._count(most_drop(self.drop))):
            return "drops more than 0.75, and gaps then have a length that the CPU works out"
        return ""

    @property
    def owes(self) -> bool:
        """Only where more than half is dropped; for less, what comes late does more harm."""
        return most_drop(self.drop) > _LITTLE

    def count(self, step: int) -> int:
        """How many coefficients of a whole block are kept at `step`: never none."""
        return self._count(drop_at(self.drop, step))

    def _count(self, drop: float) -> int:
        return min(self.block, max(1, round((1.0 - drop) * self.block)))

    def num_kept(self, numel: int, step: int) -> int:
        """How many coefficients of `numel` are kept at `step`."""
        return self._coding.form(self.count(step)).kept(numel)

    def max_nbytes(self, numel: int) -> int:
        count, always = self._count(least_drop(self.drop)), not isinstance(self.drop, str)
        return self._coding.max_nbytes(numel, count, always=always)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        """Of `key`, only the step matters."""
        if x.dtype != torch.float32 or not x.is_contiguous():
            x = scratch.of_thread().take("values", x.numel(), torch.float32, x.device).copy_(x)
        domain, count = self._domain(x, key.step), self.count(key.step)
        return self._coding.encode(x, (), out, domain=domain, count=count)  # eq. (1)

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        self._add([payload], out, key.step, weight, accumulate)

    def mean_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> Seen:
        """Sum the coefficients of all workers, and turn them back once."""
        self._add(payloads, out, keys[0].step, 1.0 / len(payloads), accumulate=False)
        return ()

    def relay(
        self, payloads: Sequence[Tensor], total: Tensor, out: Tensor, keys: Sequence[Key],
        key: Key, offset: int = 0,
    ) -> int:  # fmt: skip
        """Owners add spectra, and turn back once what they did not send."""
        number, count = self._domain(total, key.step), self.count(key.step)
        read = self._read(payloads, total.numel(), key.step)
        near = [each for each in read if (each.domain, each.form.count) == (number[0], count)]
        if len(near) < len(read):  # values can be added in any domain
            return super().relay(payloads, total, out, keys, key, offset)
        return self._coding.encode(total, near, out, domain=number, count=count, rest=total)

    def _add(
        self, payloads: Sequence[Tensor], out: Tensor, step: int, weight: float, accumulate: bool
    ) -> None:
        """Those of one domain at a time, from that of the first on."""
        groups: dict[tuple[int, int], list[Spectrum]] = {}
        for each in self._read(payloads, out.numel(), step):
            groups.setdefault((each.domain, each.form.count), []).append(each)
        for (domain, _), group in groups.items():
            add_spectra(group, DOMAINS[domain], out, weight, accumulate)
            accumulate = True

    def _read(self, payloads: Sequence[Tensor], numel: int, step: int) -> list[Spectrum]:
        """What payloads of `step` say."""
        known = None
        if payloads and payloads[0].device.type != "cpu":
            known = self._coding.usual_head(self.count(step), DOMAINS.index(self.domain))
        return [self._coding.read(p, numel, i, known) for i, p in enumerate(payloads)]

    def _domain(self, x: Tensor, step: int) -> tuple[int, str]:
        """The number and the name of the domain."""
        name = self._best_domain(x, step) if self.domain == "auto" else self.domain
        return DOMAINS.index(name), name

    def _best_domain(self, x: Tensor, step: int) -> str:
        """The domain whose largest coefficients hold most of the energy."""
        sample, form = _sample(x, self.block), Form(self.block, self.count(step), None, 0)
        norms = {domain: _kept_norm(domain, sample, form) for domain in DOMAINS}
        return max(norms, key=norms.__getitem__)

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """A head, the coefficients, the scales of the blocks, and where the coefficients are."""
        return self._coding.anatomy(payload, numel)

    @property
    def _coding(self) -> SparseCoding:
        return SparseCoding(self.bits, self.mantissa, self.block, self.wire == "zstd")


def _sample(x: Tensor, block: int) -> Tensor:
    """A few blocks of `x` as float32, those that are not finite as zeros."""
    whole = x.numel() // block
    if x.numel() > _SAMPLE * block:
        rows = torch.arange(_SAMPLE, device=x.device) * whole // _SAMPLE
        x = x[: whole * block].view(whole, block)[rows].view(-1)
    parts = torch.split(x.float(), block)
    return torch.cat([p if p.isfinite().all() else torch.zeros_like(p) for p in parts])


def _kept_norm(domain: str, x: Tensor, form: Form) -> float:
    """The norm of the coefficients that are kept, to the same bit on every processor."""
    if not x.numel():
        return 0.0
    kernel, numel = kernels.for_device(x.device), x.numel()
    sizes = form.scales_nbytes(numel), bitmap_nbytes(numel), form.codes_nbytes(numel)
    kept = Kept(*(torch.empty(size, dtype=torch.uint8) for size in sizes))
    kernel.keep_spectra(x, (), kept, None, domain=domain, form=form)
    norm = torch.empty(1)
    kernel.block_scales(kept.codes.view(torch.float32), norm, block=None, norm="l2")
    return float(norm)
