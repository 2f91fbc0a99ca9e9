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
from gradwire.kernels.exact import exp, exp2
from gradwire.kernels.formats.huffman import CHUNK, HEAD, STREAMS, THRESHOLDS, tables
from gradwire.kernels.formats.layout import MOST as _MAX_LEVEL
from gradwire.kernels.formats.layout import num_blocks
from gradwire.kernels.formats.prefix import FINENESS
from gradwire.kernels.formats.sample import BINS, LEAST, LOWEST, MOST, PARTS, TILES

SEGMENT = 1 << 18
_OVERHEAD = 8 * HEAD + 3.5 * STREAMS
"""Bits of a chunk that are no codes: its head, and what its streams have to spare on average."""
_FINENESS = 256
"""Steps are rounded to such parts of an octave."""
_CAUTION = 0.01
"""The share of a budget that is kept back, so that what a sample misses does not exceed it."""


def segment_of(block: int) -> int:
    """How many values share a step: whole blocks, about `SEGMENT` values."""
    return block * max(1, SEGMENT // block)


def find_ratios(x: Tensor, block: int | None, bits_per_value: float) -> tuple[Tensor, int | None]:
    """Steps in units of the root mean square for a payload of `bits_per_value`, scales included.

    And how many values share one; None is all.
    """
    segment = segment_of(block) if block else None
    starts = np.arange(0, x.numel(), segment or max(x.numel(), 1))
    counts = torch.zeros(len(starts), TILES, BINS, dtype=torch.int32)
    limits = torch.zeros(len(starts), TILES, dtype=torch.int32)
    kernels.for_device(x.device).count_ratios(x, counts, limits, segment=segment, block=block)
    sizes = np.minimum(x.numel() - starts, segment or x.numel())
    scales = np.array([num_blocks(int(size), block) for size in sizes.tolist()])
    rest = bits_per_value * (1 - _CAUTION) - _OVERHEAD / CHUNK
    most = _most_parts(rest - (32 / block if block else 0.0))
    parts = _solve(counts.float().numpy(), limits.numpy(), rest - 32 * scales / sizes, round(most))
    ratios = [_step(round(min(part, most) * _FINENESS / PARTS)) for part in parts]
    return torch.tensor(ratios), segment


@lru_cache(1024)
def _step(part: int) -> float:
    """2^(part / 256); roots of long integers take a while."""
    return exp2(part, _FINENESS)


def _solve(counts: Any, limits: Any, targets: Any, guess: int) -> list[float]:
    """The step of each segment in parts of an octave; between two whole ones bits fall evenly.

    The search starts at `guess` and goes down by one until the budget is exceeded, or up.
    """
    steps = np.full(len(counts), guess)
    found, bits = steps.astype(np.float64), _bits(counts, limits, steps)
    ways = np.where(bits <= targets, -1, 1)
    own = np.flatnonzero((steps > LEAST) & (steps < MOST))
    while len(own):
        here, now, target = steps[own], bits[own], targets[own]
        there = here + ways[own]
        further = _bits(counts[own], limits[own], there)
        crossed, same = (further <= target) != (now <= target), further == now
        between = here + ways[own] * (now - target) / np.where(same, 1.0, now - further)
        found[own] = np.where(crossed, between, np.where(same, here, there))
        steps[own], bits[own] = there, further
        own = own[~crossed & ~same & (there > LEAST) & (there < MOST)]  # same: all at their least
    return [float(each) for each in found]


def _bits(counts: Any, limits: Any, steps: Any) -> Any:
    """Bits a value that tiles of each segment take with its step, or the least they may have."""
    tiles, own = counts.reshape(-1, BINS), np.maximum(limits, steps[:, None]).reshape(-1)
    costs = np.empty(len(tiles))
    for each in sorted(set(own.tolist())):
        first = MOST - each
        prices = tiles[own == each] @ _prices()[first : first + BINS]  # bits: whole numbers
        costs[own == each] = prices.min(axis=1)
    totals = counts.sum(axis=(1, 2), dtype=np.float64)  # bits: whole numbers
    return costs.reshape(limits.shape).sum(axis=1) / (FINENESS * totals)  # bits: whole numbers


@lru_cache(1)
def _prices() -> Any:
    """What a value costs by its size in steps, 2^(1/8) apart, and by table.

    Whole numbers, so small that those of a tile add up exactly in float32.
    """
    rises = np.cumsum(tables().costs.astype(np.int64), axis=0)  # bits: integers
    by_level = rises[np.searchsorted(THRESHOLDS, np.arange(_MAX_LEVEL + 2), side="right")]
    sizes = [_middle(i - MOST + LOWEST * PARTS) for i in range(BINS + MOST - LEAST)]
    prices = []
    for size in sizes:
        whole = min(int(size), _MAX_LEVEL)
        part = round(min(size - whole, 1.0) * FINENESS)
        prices.append(
            (by_level[whole] * (FINENESS - part) + by_level[whole + 1] * part) // FINENESS
        )
    return np.array(prices, np.float32)


def _middle(part: int) -> float:
    """The middle of a bin."""
    octave, eighth = divmod(part, PARTS)
    return exp2(octave, 1) * (1 + (eighth + 0.5) / PARTS)


@lru_cache(64)
def _most_parts(bits: float) -> float:
    """The step that codes of Gaussian values of so many bits need, in parts of an octave."""
    edges = [exp2(LOWEST + i // PARTS, 1) * (1 + i % PARTS / PARTS) for i in range(BINS + 1)]
    counts = [round(2**24 * (b - a) * exp(-(a + b) * (a + b) / 8)) if a < 16 else 0
              for a, b in zip([0.0, *edges[1:-1]], edges[1:], strict=True)]  # fmt: skip
    (found,) = _solve(np.array([[counts]], np.float64), np.array([[LEAST]]), np.array([bits]), 0)
    return found
