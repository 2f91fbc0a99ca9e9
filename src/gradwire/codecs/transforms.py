r"""Orthonormal transforms of blocks: the coefficients of n values are n values of equal energy.

    time   c = x
    fft    c = sqrt(2) * (Re F_0 / sqrt(2), Re F_1, Im F_1, Re F_2, ...), F = rfft(x) / sqrt(B);
           the last one, Re F_{B/2} of an even B, has no sqrt(2) either
    dct    c_k = s_k sum_j x_j cos(pi (2 j + 1) k / (2 B)), s_0 = 1 / sqrt(B), else sqrt(2 / B)

with B values in a block; the last block of a vector has as many as are left, and a shorter
transform. Each is a rotation (Parseval): what is dropped of c is lost of x, to the last joule.
The DCT is an FFT of the even values followed by the odd ones backwards [1], turned by a quarter
sample: w_k F_k = s_k^-1 (c_k - i c_{B-k}).

Blocks go through an aligned scratch buffer a few at a time: it stays in cache, and the same
values give the same bits wherever they lie.

[1] J. Makhoul, "A fast cosine transform in one and two dimensions", IEEE Trans. ASSP 28 (1980).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor

DOMAINS = ("time", "fft", "dct")
_CHUNK = 1 << 16


def forward(domain: str, x: Tensor, out: Tensor, block: int) -> None:
    """Write the coefficients of `x`, of any float type, to `out` (float32)."""
    transform = _FORWARD[domain]
    for start, stop, size in _chunks(x.numel(), block):
        rows = x[start:stop].view(-1, size).to(torch.float32, copy=True)
        transform(rows, out[start:stop].view(-1, size))


def inverse(
    domain: str,
    coefficients: Tensor,
    out: Tensor,
    block: int,
    *,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Write (or add) `weight` times the values with these `coefficients` to `out` (float32)."""
    transform = _INVERSE[domain]
    for start, stop, size in _chunks(coefficients.numel(), block):
        values = transform(coefficients[start:stop].view(-1, size)).view(-1)
        if accumulate:
            out[start:stop].add_(values, alpha=weight)
        else:
            torch.mul(values, weight, out=out[start:stop])


def _chunks(numel: int, block: int) -> Iterator[tuple[int, int, int]]:
    """(first value, last, block): runs of whole blocks, then the last one if it is shorter."""
    whole, step = numel // block * block, max(1, _CHUNK // block) * block
    for start in range(0, whole, step):
        yield start, min(start + step, whole), block
    if whole < numel:
        yield whole, numel, numel - whole


def _copy(rows: Tensor, out: Tensor) -> None:
    out.copy_(rows)


def _same(coefficients: Tensor) -> Tensor:
    return coefficients


@lru_cache(64)
def _fft_weights(size: int, power: int) -> Tensor:
    """What coefficients 1, 2, ... of a block are to be multiplied by, forth (1) or back (-1)."""
    weights = torch.full((size - 1,), math.sqrt(2.0) ** power)
    if size % 2 == 0:
        weights[-1] = 1.0
    return weights


def _fft(rows: Tensor, out: Tensor) -> None:
    size = rows.shape[1]
    spectrum = torch.view_as_real(torch.fft.rfft(rows, norm="ortho")).flatten(1)
    out[:, 0] = spectrum[:, 0]
    torch.mul(spectrum[:, 2 : size + 1], _fft_weights(size, 1), out=out[:, 1:])


def _inverse_fft(coefficients: Tensor) -> Tensor:
    size = coefficients.shape[1]
    spectrum = coefficients.new_empty(coefficients.shape[0], size // 2 + 1, 2)
    flat = spectrum.view(coefficients.shape[0], -1)
    flat[:, 0], flat[:, 1], flat[:, -1] = coefficients[:, 0], 0.0, 0.0
    torch.mul(coefficients[:, 1:], _fft_weights(size, -1), out=flat[:, 2 : size + 1])
    values: Tensor = torch.fft.irfft(torch.view_as_complex(spectrum), n=size, norm="ortho")
    return values


@lru_cache(64)
def _dct_turns(size: int) -> Tensor:
    """w_k: a turn by a quarter sample, and sqrt(2) for all but the first."""
    k = torch.arange(size // 2 + 1, dtype=torch.float64)
    length = torch.full_like(k, math.sqrt(2.0))
    length[0] = 1.0
    return torch.polar(length, -math.pi * k / (2 * size)).to(torch.complex64)


def _dct(rows: Tensor, out: Tensor) -> None:
    size, half = rows.shape[1], rows.shape[1] // 2 + 1
    order = torch.cat((rows[:, 0::2], rows[:, 1::2].flip(1)), 1)
    turned = torch.fft.rfft(order, norm="ortho") * _dct_turns(size)
    out[:, :half] = turned.real
    torch.neg(turned.imag[:, 1 : size - half + 1].flip(1), out=out[:, half:])


def _inverse_dct(coefficients: Tensor) -> Tensor:
    size, half = coefficients.shape[1], coefficients.shape[1] // 2 + 1
    imaginary = torch.zeros_like(coefficients[:, :half])
    imaginary[:, 1:] = -coefficients[:, size - half + 1 :].flip(1)
    turned = torch.complex(coefficients[:, :half].contiguous(), imaginary)
    turns = _dct_turns(size)
    order = torch.fft.irfft(turned * (turns.conj() / turns.abs().square()), n=size, norm="ortho")
    out = torch.empty_like(order)
    out[:, 0::2] = order[:, : (size + 1) // 2]
    out[:, 1::2] = order[:, (size + 1) // 2 :].flip(1)
    return out


_FORWARD: dict[str, Callable[[Tensor, Tensor], None]] = {"time": _copy, "fft": _fft, "dct": _dct}
_INVERSE: dict[str, Callable[[Tensor], Tensor]] = {
    "time": _same, "fft": _inverse_fft, "dct": _inverse_dct,
}  # fmt: skip
