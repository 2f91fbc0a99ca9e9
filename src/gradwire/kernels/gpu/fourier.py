"""Orthonormal transforms of blocks in Triton; `reference/transforms.py` says in which order.

A program has whole blocks in registers, as rows. Where they change their order, they go through
shared memory (`tl.gather`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton.language as tl

from gradwire.kernels import twiddles
from gradwire.kernels.gpu.butterflies import fourier, reversed_bits
from gradwire.kernels.gpu.compiler import jit

MOST = 4096
"""Values of the largest block: what a program has room for."""


@lru_cache(64)
def tables_of(size: int, device: torch.device) -> dict[str, Any]:
    """The twiddles of a transform of `size` values on a device, as kernels take them."""
    table = twiddles.tables(size)
    arrays = {"levels": table.levels, "split": table.split, "turns": table.turns}
    tensors: dict[str, Any] = {name: torch.from_numpy(array.reshape(-1)).to(device)
                               for name, array in arrays.items()}  # fmt: skip
    return tensors | {"scale": table.scale, "ends": table.ends}


@jit
def place_in_time(n, SIZE: tl.constexpr, DCT: tl.constexpr):
    """Where value `n` of those that are transformed is: the dct takes odd ones last, backwards."""
    if DCT and SIZE > 1:
        n = tl.where(n < SIZE // 2, 2 * n, 2 * (n ^ (SIZE - 1)) + 1)
    return n


@jit
def _places_of_bins(k, SIZE: tl.constexpr, DCT: tl.constexpr):
    """Where the real and the imaginary part of bins are among the coefficients; 0 has both ends."""
    if DCT:
        re, im = k, tl.where(k > 0, -k & (SIZE - 1), SIZE // 2)
    else:
        re, im = tl.maximum(2 * k - 1, 0), tl.where(k > 0, 2 * k, SIZE - 1)
    return re, im


@jit
def _picked(values, at):
    """Values of each row, those of all rows at the same places."""
    return tl.gather(values, at + tl.zeros((values.shape[0], 1), tl.int32), 1)


@jit
def one_nan(values):
    return tl.where(values == values, values, float("nan"))


@jit
def turned(x, levels, split, turns, scale, ends, DCT: tl.constexpr):
    """Rows of values to coefficients; a single value is one."""
    size: tl.constexpr = x.shape[1]
    half: tl.constexpr = size // 2
    k = tl.arange(0, half)[None, :]
    n = 2 * reversed_bits(k, half)
    re, im = _picked(x, place_in_time(n, size, DCT)), _picked(x, place_in_time(n + 1, size, DCT))
    re, im = fourier(re, im, levels)
    first, last = (re + im) * ends, (re - im) * ends
    mirror, low = -k & (half - 1), 2 * k < half
    other_re, other_im = _picked(re, mirror), _picked(im, mirror)
    at = 2 * tl.where(low, k, mirror)
    cos, sin = tl.load(split + at), tl.load(split + at + 1)
    er, di = re + other_re, im + other_im
    ei = tl.where(low, im - other_im, other_im - im)
    dr = tl.where(low, re - other_re, other_re - re)
    tr, ti = cos * di - sin * dr, cos * dr + sin * di
    re, im = tl.where(low, er + tr, er - tr), tl.where(low, ei, ei * -1.0) - ti
    if DCT:
        re, im = _quarter(re, im, turns, k)
    else:
        re, im = re * scale, im * scale
    both = tl.interleave(tl.where(k > 0, re, first), tl.where(k > 0, im, last))
    return one_nan(_picked(both, _places_of_coefficients(size, DCT)))


@jit
def _places_of_coefficients(SIZE: tl.constexpr, DCT: tl.constexpr):
    """Where each coefficient is among bins, real and imaginary parts in turn."""
    i = tl.arange(0, SIZE)[None, :]
    if DCT:
        at = tl.where(i < SIZE // 2, 2 * i, (1 - 2 * i) & (SIZE - 1))
    else:
        at = tl.where(i == 0, 0, (i + 1) & (SIZE - 1) | (i == SIZE - 1).to(tl.int32))
    return at


@jit
def _quarter(re, im, turns, k):
    """A turn by a quarter sample, and the scale."""
    cos, sin = tl.load(turns + 2 * k), tl.load(turns + 2 * k + 1)
    return re * cos + im * sin, re * sin - im * cos


@jit
def _bins(c, k, turns, scale, DCT: tl.constexpr):
    """Bins `k` of rows of coefficients: as they are, and scaled."""
    at_re, at_im = _places_of_bins(k, c.shape[1], DCT)
    first, last = _picked(c, at_re), _picked(c, at_im)
    if DCT:
        re, im = _quarter(first, last, turns, k)
    else:
        re, im = first * scale, last * scale
    return first, last, re, im


@jit
def turned_back(c, levels, split, turns, scale, ends, DCT: tl.constexpr):
    """Rows of coefficients to values, where `place_in_time` says."""
    half: tl.constexpr = c.shape[1] // 2
    k = reversed_bits(tl.arange(0, half)[None, :], half)
    mirror, low = -k & (half - 1), 2 * k < half
    first, last, re, im = _bins(c, k, turns, scale, DCT)
    _, _, other_re, other_im = _bins(c, mirror, turns, scale, DCT)
    at = 2 * tl.where(low, k, mirror)
    cos, sin = tl.load(split + at), tl.load(split + at + 1)
    er, di = re + other_re, im + other_im
    ei = tl.where(low, im - other_im, other_im - im)
    dr = tl.where(low, re - other_re, other_re - re)
    tr, ti = cos * di + sin * dr, cos * dr - sin * di
    re = tl.where(low, er - tr, er + tr)
    im = tl.where(low, ei + ti, ti - ei)
    im, re = fourier(
        tl.where(k > 0, im, (first - last) * ends), tl.where(k > 0, re, (first + last) * ends),
        levels,
    )  # fmt: skip
    return tl.interleave(re, im)
