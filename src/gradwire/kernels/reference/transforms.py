"""Orthonormal transforms of blocks in plain torch, in steps that define every bit.

Sums, differences and products of float32, each rounded, in this order, for B values x of a block
whose spectrum is F (`protocol/spectra.py`):

1. B / 2 complex numbers z_j = x_2j + i x_2j+1; for the dct, of x_0, x_2, ..., x_3, x_1 [1].
2. Their transform Z, decimated in time: places in the order of reversed bits, plain butterflies of
   two or of four, then butterflies of four with twiddles.
3. F from Z: 2 F_k = Z_k + Z'_{B/2-k} - i exp(-2 pi i k / B) (Z_k - Z'_{B/2-k}), Z' the conjugate.
4. Scales; for the dct a turn by a quarter sample, w_k F_k = c_k - i c_{B-k}.

Back, these steps are undone from the last to the first; a transform of the conjugate is an inverse.

[1] J. Makhoul, "A fast cosine transform in one and two dimensions", IEEE Trans. ASSP 28 (1980).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.twiddles import Tables, first_level, pieces, reversed_bits, tables

Pair = tuple[Tensor, Tensor]


def transform(x: Tensor, out: Tensor, *, domain: str, block: int) -> None:
    """Write the coefficients of the blocks of `x`, "fft" or "dct", to `out`, which may be `x`."""
    for start, stop, size in pieces(x.numel(), block):
        rows = x[start:stop].view(-1, size)
        done = rows if size == 1 else _forward(rows, tables(size), domain == "dct")
        out[start:stop] = _one_nan(done).view(-1)


def transform_back(
    coefficients: Tensor,
    out: Tensor,
    *,
    domain: str,
    block: int,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Write, or add, `weight` times the values with these `coefficients` to `out`."""
    factor = torch.tensor(weight, dtype=torch.float32)
    for start, stop, size in pieces(coefficients.numel(), block):
        rows = coefficients[start:stop].view(-1, size)
        done = rows if size == 1 else _backward(rows, tables(size), domain == "dct")
        values = done.reshape(-1) * factor
        out[start:stop] = _one_nan(out[start:stop] + values if accumulate else values)


def _forward(x: Tensor, table: Tables, dct: bool) -> Tensor:
    if dct:
        x = torch.cat((x[:, 0::2], x[:, 1::2].flip(1)), 1)
    re, im = _fourier(x[:, 0::2], x[:, 1::2], table)
    first, last = (re[:, :1] + im[:, :1]) * table.ends, (re[:, :1] - im[:, :1]) * table.ends
    re, im = _both(_split, re, im, table)
    if dct:
        re, im = _turn(re, im, table)
        return torch.cat((first, re, last, im.flip(1)), 1)
    inner = torch.stack((re * table.scale, im * table.scale), 2).flatten(1)
    return torch.cat((first, inner, last), 1)


def _backward(c: Tensor, table: Tables, dct: bool) -> Tensor:
    half = table.half
    if dct:
        first, last = c[:, :1], c[:, half : half + 1]
        re, im = _turn(c[:, 1:half], c[:, half + 1 :].flip(1), table)
    else:
        first, last = c[:, :1], c[:, -1:]
        re, im = c[:, 1:-1:2] * table.scale, c[:, 2:-1:2] * table.scale
    re, im = _both(_join, torch.cat((first, re), 1), torch.cat((first, im), 1), table)
    re = torch.cat(((first + last) * table.ends, re), 1)
    im = torch.cat(((first - last) * table.ends, im), 1)
    im, re = _fourier(im, re, table)
    x = torch.stack((re, im), 2).flatten(1)
    if not dct:
        return x
    out = torch.empty_like(x)
    out[:, 0::2], out[:, 1::2] = x[:, :half], x[:, half:].flip(1)
    return out


def _fourier(re: Tensor, im: Tensor, table: Tables) -> Pair:
    """The complex transform of the rows, level after level."""
    order = torch.from_numpy(reversed_bits(table.half))
    re, im = re[:, order], im[:, order]
    width = first_level(table.half)
    if width == 2:
        re, im = _plain_two(re), _plain_two(im)
    elif width == 4:
        re, im = _four(*(_parts(values, 1) for values in (re, im)))
    start = 0
    while 4 * width <= table.half:
        rows = torch.from_numpy(table.levels[start : start + width])
        re, im = _four(*_twisted(_parts(re, width), _parts(im, width), rows))
        start, width = start + width, 4 * width
    return re, im


def _parts(values: Tensor, width: int) -> list[Tensor]:
    """The four operands of each butterfly, `width` apart."""
    return list(values.view(values.shape[0], -1, 4, width).unbind(2))


def _plain_two(values: Tensor) -> Tensor:
    a, b = values.view(values.shape[0], -1, 2).unbind(2)
    return torch.stack((a + b, a - b), 2).flatten(1)


def _twisted(re: list[Tensor], im: list[Tensor], rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The second, third and fourth, but for their first values, times 2, 1 and 3 angles."""
    for part, angles in ((1, 2), (2, 1), (3, 3)):
        cos, sin = rows[1:, 2 * angles - 2], rows[1:, 2 * angles - 1]
        x, y = re[part][..., 1:], im[part][..., 1:]
        re[part] = torch.cat((re[part][..., :1], x * cos + y * sin), -1)
        im[part] = torch.cat((im[part][..., :1], y * cos - x * sin), -1)
    return re, im


def _four(re: list[Tensor], im: list[Tensor]) -> Pair:
    sums = [(part[0] + part[1], part[2] + part[3]) for part in (re, im)]
    (pr, qr), (pi, qi) = [(part[0] - part[1], part[2] - part[3]) for part in (re, im)]
    real = (sums[0][0] + sums[0][1], pr + qi, sums[0][0] - sums[0][1], pr - qi)
    imaginary = (sums[1][0] + sums[1][1], pi - qr, sums[1][0] - sums[1][1], pi + qr)
    return torch.stack(real, 2).flatten(1), torch.stack(imaginary, 2).flatten(1)


def _both(step, re: Tensor, im: Tensor, table: Tables) -> Pair:  # type: ignore[no-untyped-def]
    """`step` on bins k and B/2 - k together, for k from 1 to B/4; bins 1 to B/2 - 1 of the result.

    At k = B/4 both are the same bin, and the second result is taken.
    """
    middle = table.half // 2
    if not middle:
        return re[:, :0], im[:, :0]
    low, high = slice(1, middle + 1), np.arange(table.half - 1, middle - 1, -1)
    cos, sin = torch.from_numpy(table.split[low]).unbind(1)
    one, two = step(re[:, low], im[:, low], re[:, high], im[:, high], cos, sin)
    re, im = (torch.cat((a[:, :-1], b.flip(1)), 1) for a, b in zip(one, two, strict=True))
    return re, im


def _split(
    ar: Tensor, ai: Tensor, br: Tensor, bi: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Pair, Pair]:
    er, ei, dr, di = ar + br, ai - bi, ar - br, ai + bi
    tr, ti = cos * di - sin * dr, cos * dr + sin * di
    return (er + tr, ei - ti), (er - tr, -ei - ti)


def _join(
    ar: Tensor, ai: Tensor, br: Tensor, bi: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Pair, Pair]:
    er, ei, dr, di = ar + br, ai - bi, ar - br, ai + bi
    tr, ti = cos * di + sin * dr, cos * dr - sin * di
    return (er - tr, ei + ti), (er + tr, ti - ei)


def _turn(re: Tensor, im: Tensor, table: Tables) -> Pair:
    cos, sin = torch.from_numpy(table.turns[1:]).unbind(1)
    return re * cos + im * sin, re * sin - im * cos


def _one_nan(values: Tensor) -> Tensor:
    return torch.where(values.isnan(), torch.nan, values)
