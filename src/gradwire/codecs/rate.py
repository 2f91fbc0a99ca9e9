"""The step of a dithered quantizer whose codes are entropy coded: given, or found for a budget.

The step of a block is `step` times its root mean square, but never below 1 / 127 of its largest
value, so that every code fits 8 bits and nothing is ever clipped. Only steps of blocks travel.

A budget is met by trial: a sample of the vector is really encoded, with one step after the other,
by the secant rule on log2(step). A vector is searched in segments, so that pieces of it, cut at
segments, find the same steps.

No step is larger than a long vector of Gaussian values needs. Of all laws with the same root mean
square that one takes most bits, so nothing else ever asks for more; but in a short vector the
scale and the zstd frame may take the whole budget, and no step however large would bring it back.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codecs.coding import compress
from gradwire.kernels.exact import exp2, sqrt
from gradwire.kernels.formats.layout import MAX_SCALE, MIN_SCALE, TILE, num_blocks, packed_nbytes
from gradwire.key import Key

SEGMENT = 1 << 18
_SAMPLE = 1 << 16
_MAX_LEVEL = 127
_NIBBLE = 7.5
"""Values below this many steps mostly have codes of 4 bits."""
_GAUSSIAN_RATES = (1.0, 1.5, 2.0, 3.0)
_GAUSSIAN_OCTAVES = (2.6, 1.03, 0.32, -0.81)
"""log2 of the step at which long Gaussian vectors take these bits a value, measured, and 0.04."""
_IDEAL_OCTAVE = 2.047
"""log2 of sqrt(2 pi e), the step at no bits if each bit halved it."""
_TOP_OCTAVE, _BOTTOM_OCTAVE = 3.0, -9.0
_FINENESS = 256
"""Steps are rounded to such parts of an octave."""


def segment_of(block: int) -> int:
    """How many values share a step search: whole blocks, about `SEGMENT` values."""
    return block * max(1, SEGMENT // block)


def moments(x: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
    """The largest magnitude and the root mean square of each block; NaN if it holds inf or NaN."""
    count = num_blocks(x.numel(), block)
    peaks, norms = (torch.empty(count, device=x.device) for _ in range(2))
    kernel = kernels.for_device(x.device)
    kernel.block_scales(x, peaks, block=block, norm="max")
    kernel.block_scales(x, norms, block=block, norm="l2")
    sizes = torch.full_like(norms, float(block or x.numel()))
    sizes[-1:] = float(x.numel() - (count - 1) * (block or x.numel()))
    return peaks, norms / sqrt(sizes)


def block_steps(peaks: Tensor, rms: Tensor, step: float) -> Tensor:
    """The step of each block; 0 marks a block of zeros."""
    steps = torch.maximum(rms * step, peaks / _MAX_LEVEL).clamp_max(MAX_SCALE)
    return torch.where(peaks <= MIN_SCALE, 0.0, steps)


def has_few_outliers(x: Tensor, steps: Tensor, block: int | None) -> bool:
    """Do so few codes need more than 4 bits that two planes are smaller than bytes? By a sample.

    Measured, planes are smaller than bytes up to one value in a hundred or so.
    """
    if not x.numel():
        return True
    size = min(block or x.numel(), x.numel())
    whole = x.numel() // size
    sample = x[: whole * size].view(whole, size)[:, :: max(1, x.numel() // _SAMPLE)]
    outliers = sample.abs() > _NIBBLE * steps[:whole, None]
    return 100 * int(outliers.count_nonzero()) <= sample.numel()


def find_steps(
    x: Tensor, block: int | None, bits_per_value: float, key: Key, offset: int
) -> Tensor:
    """The steps of all blocks for a payload of `bits_per_value`, scales included."""
    peaks, rms = moments(x, block)
    most = _most_octave(bits_per_value - (32 / block if block else 0.0))
    size = segment_of(block) if block else max(x.numel(), 1)
    steps = torch.empty_like(peaks)
    for start in range(0, x.numel(), size):
        span = slice(start // block, (start + size) // block) if block else slice(None)
        trial = _Trial(x[start : start + size], peaks[span], rms[span], block, key, offset + start)
        step = _solve(trial.bits, bits_per_value, most)
        steps[span] = block_steps(peaks[span], rms[span], step)
    return steps


def _most_octave(bits: float) -> float:
    """log2 of the largest step that codes of so many bits a value may need."""
    if bits < _GAUSSIAN_RATES[0]:
        return _TOP_OCTAVE
    if bits >= _GAUSSIAN_RATES[-1]:
        return _GAUSSIAN_OCTAVES[-1] + _GAUSSIAN_RATES[-1] - bits
    i = bisect(_GAUSSIAN_RATES, bits)
    (low, high), (first, last) = _GAUSSIAN_RATES[i - 1 : i + 1], _GAUSSIAN_OCTAVES[i - 1 : i + 1]
    return first + (last - first) * (bits - low) / (high - low)


def _solve(bits: Callable[[float], float], target: float, most: float) -> float:
    """The step at which `bits(step)` is `target` to 0.3 %, or as near as six trials come.

    At a high rate, twice the step saves one bit; at a low one less. Steps are rounded to 2^-8 of
    an octave, and kept to those that make sense: to 2^`most` at the most.
    """
    slope, tried = -1.0, (0.0, 0.0)
    octave = _IDEAL_OCTAVE - target  # of Gaussian values
    for trial in range(6):
        part = round(_FINENESS * min(max(octave, _BOTTOM_OCTAVE), most))
        octave, step = part / _FINENESS, exp2(part, _FINENESS)
        excess = bits(step) - target
        if abs(excess) <= 0.003 * target or (trial and octave == tried[0]):
            break
        if trial:
            slope = min(max((excess - tried[1]) / (octave - tried[0]), -1.5), -0.3)
        tried = octave, excess
        octave -= excess / slope
    return step


class _Trial:
    """A sample of a segment, every so many tiles of it, ready to be encoded with any step."""

    def __init__(
        self, x: Tensor, peaks: Tensor, rms: Tensor, block: int | None, key: Key, offset: int
    ) -> None:
        self.key, self.offset = key, offset
        self.scale_bits = 32 * peaks.numel() / x.numel()
        self.block = min(block or TILE, TILE)
        every, tiles = -(-x.numel() // _SAMPLE), -(-x.numel() // TILE)
        if every > 1:
            tiles = x.numel() // TILE
            x = x[: tiles * TILE].view(tiles, TILE)[::every].reshape(-1)
        starts = torch.arange(0, tiles * TILE, every * TILE)[:, None]
        starts = (starts + torch.arange(0, TILE, self.block)).view(-1)
        at = (starts // block if block else starts.zero_()).clamp_max(peaks.numel() - 1)
        self.values, self.peaks, self.rms = x, peaks[at], rms[at]
        self.codes = torch.empty(packed_nbytes(x.numel(), 8), dtype=torch.uint8)

    def bits(self, step: float) -> float:
        """Bits a value that the sample takes, its share of the scales included."""
        steps = block_steps(self.peaks, self.rms, step)
        planes = has_few_outliers(self.values, steps, self.block)
        kernels.for_device(self.values.device).quantize_dithered(
            self.values, steps, self.codes, zero=8, planes=planes, block=self.block,
            key=self.key, offset=self.offset,
        )  # fmt: skip
        return 8 * compress(self.codes).numel() / self.values.numel() + self.scale_bits
