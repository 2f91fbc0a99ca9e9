"""The step of a dithered quantizer whose codes are Huffman coded: given, or found for a budget.

The step of a block is `step` times its root mean square, but never below 1 / 127 of its largest
value, so that every code fits 8 bits and nothing is ever clipped. Only steps of blocks travel.

A budget is met without any trial. What a value costs in a table follows from its size in steps, so
a histogram of values in units of the block's root mean square, an eighth of an octave each, says
what any step would cost: a larger step shifts it. Histograms are of a few tiles of each segment of
a vector, each of them its own chunk; pieces of a vector, cut at segments, find the same steps.

No step is larger than a long vector of Gaussian values needs. Of all laws with the same root mean
square that one takes most bits, so nothing else ever asks for more; but in a short vector the
scale may take the whole budget, and no step however large would bring it back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire import kernels
from gradwire.kernels.exact import exp, exp2, sqrt
from gradwire.kernels.formats.huffman import CHUNK, THRESHOLDS, tables
from gradwire.kernels.formats.layout import MAX_SCALE, MIN_SCALE, TILE, num_blocks
from gradwire.kernels.formats.prefix import FINENESS

SEGMENT = 1 << 18
_TILES = 8
"""Tiles of a segment that are looked at."""
_MAX_LEVEL = 127
_PARTS, _LOWEST, _BINS = 8, -4, 96
"""Bins of an octave, the octave where they begin, and how many there are."""
_INF_BITS = 0x7F800000
_LEAST, _MOST = -9 * _PARTS, 3 * _PARTS
"""The steps that make sense, in parts of an octave."""
_FINENESS = 256
"""Steps are rounded to such parts of an octave."""
_CAUTION = 0.01
"""The share of a budget that is kept back, so that what a sample misses does not exceed it."""


def segment_of(block: int) -> int:
    """How many values share a step: whole blocks, about `SEGMENT` values."""
    return block * max(1, SEGMENT // block)


def moments(x: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
    """The largest magnitude and the root mean square of each block; NaN if it holds inf or NaN."""
    count = num_blocks(x.numel(), block)
    peaks, norms = (torch.empty(count, device=x.device) for _ in range(2))
    kernels.for_device(x.device).block_moments(x, peaks, norms, block=block)
    sizes = torch.full_like(norms, float(block or x.numel()))
    sizes[-1:] = float(x.numel() - (count - 1) * (block or x.numel()))
    return peaks, norms / sqrt(sizes)


def block_steps(peaks: Tensor, rms: Tensor, step: float | Tensor) -> Tensor:
    """The step of each block; 0 marks a block of zeros."""
    steps = torch.maximum(rms * step, peaks / _MAX_LEVEL).clamp_max(MAX_SCALE)
    return torch.where(peaks <= MIN_SCALE, 0.0, steps)


def find_steps(x: Tensor, block: int | None, bits_per_value: float) -> Tensor:
    """The steps of all blocks for a payload of `bits_per_value`, scales included."""
    peaks, rms = moments(x, block)
    segment = segment_of(block) if block else max(x.numel(), 1)
    rest = bits_per_value * (1 - _CAUTION) - 40 / CHUNK
    most = _most_parts(rest - (32 / block if block else 0.0))
    steps = torch.empty_like(peaks)
    for start in range(0, x.numel(), segment):
        part = x[start : start + segment]
        span = slice(start // block, (start + segment) // block) if block else slice(None)
        sample = _sample(part, peaks[span], rms[span], block)
        target = rest - 32 * peaks[span].numel() / part.numel()
        parts = min(_solve(*sample, target, round(most)), most)
        step = _step(round(parts * _FINENESS / _PARTS))
        steps[span] = block_steps(peaks[span], rms[span], step)
    return steps


@lru_cache(1024)
def _step(part: int) -> float:
    """2^(part / 256); roots of long integers take a while."""
    return exp2(part, _FINENESS)


def _sample(x: Tensor, peaks: Tensor, rms: Tensor, block: int | None) -> tuple[Any, Any]:
    """Histograms of some tiles, and the least step of each in parts of an octave."""
    every = -(-x.numel() // (TILE * _TILES))
    tiles, width = max(x.numel() // TILE, 1), min(x.numel(), TILE)
    starts = TILE * np.arange(0, tiles, every)[:, None]
    values = x[: tiles * width].view(tiles, width)[::every].float().abs()
    inside = np.arange(0, width, block) if block and block < TILE else np.zeros(1, np.int64)
    owner = torch.from_numpy((starts + inside) // (block or x.numel()))
    each = rms[owner].repeat_interleave(min(block or TILE, TILE), 1)[:, :width]
    ratios = (values / each).numpy().view(np.int32)
    bins = np.clip((ratios >> 20) - ((127 + _LOWEST) * _PARTS), 0, _BINS - 1)
    bins[ratios >= _INF_BITS] = 0
    places = bins + _BINS * np.arange(len(starts))[:, None]
    counts = np.bincount(places.reshape(-1), minlength=_BINS * len(starts)).reshape(-1, _BINS)
    first = owner[:, 0]
    limits = (peaks[first] / (_MAX_LEVEL * rms[first])).numpy().view(np.int32) >> 20
    return counts.astype(np.float64), np.clip(limits - 127 * _PARTS + 1, _LEAST, _MOST)


def _solve(counts: Any, limits: Any, target: float, guess: int) -> float:
    """The step in parts of an octave; between two whole ones bits fall evenly.

    The search starts at `guess` and goes down by one until the budget is exceeded, or up.
    """
    step, bits = guess, _bits(counts, limits, guess)
    way = -1 if bits <= target else 1
    while _LEAST < step < _MOST:
        further = _bits(counts, limits, step + way)
        if (further <= target) != (bits <= target):
            return step + way * (bits - target) / (bits - further)
        if further == bits:  # no tile may have a smaller one
            return step
        step, bits = step + way, further
    return step


def _bits(counts: Any, limits: Any, step: int) -> float:
    """Bits a value that tiles take with this step, or with the least that they may have."""
    steps, total = np.maximum(limits, step), 0.0
    for each in sorted(set(steps.tolist())):
        first = _MOST - each
        costs = counts[steps == each] @ _prices()[first : first + _BINS]  # bits: whole numbers
        total += sum(costs.min(axis=1).tolist())
    return total / (FINENESS * float(counts.sum()))  # bits: whole numbers


@lru_cache(1)
def _prices() -> Any:
    """What a value costs by its size in steps, 2^(1/8) apart, and by table; whole numbers."""
    rises = np.cumsum(tables().costs.astype(np.int64), axis=0)  # bits: integers
    by_level = rises[np.searchsorted(THRESHOLDS, np.arange(_MAX_LEVEL + 2), side="right")]
    sizes = [_middle(i - _MOST + _LOWEST * _PARTS) for i in range(_BINS + _MOST - _LEAST)]
    prices = []
    for size in sizes:
        whole = min(int(size), _MAX_LEVEL)
        part = round(min(size - whole, 1.0) * FINENESS)
        prices.append(
            (by_level[whole] * (FINENESS - part) + by_level[whole + 1] * part) // FINENESS
        )
    return np.array(prices, np.float64)


def _middle(part: int) -> float:
    """The middle of a bin."""
    octave, eighth = divmod(part, _PARTS)
    return exp2(octave, 1) * (1 + (eighth + 0.5) / _PARTS)


@lru_cache(64)
def _most_parts(bits: float) -> float:
    """The step that codes of Gaussian values of so many bits need, in parts of an octave."""
    edges = [exp2(_LOWEST + i // _PARTS, 1) * (1 + i % _PARTS / _PARTS) for i in range(_BINS + 1)]
    counts = [round(2**24 * (b - a) * exp(-(a + b) * (a + b) / 8)) if a < 16 else 0
              for a, b in zip([0.0, *edges[1:-1]], edges[1:], strict=True)]  # fmt: skip
    return _solve(np.array([counts], np.float64), np.array([_LEAST]), bits, 0)
