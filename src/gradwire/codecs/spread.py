"""How many values nested payloads get wrong, from the spread of the workers.

A nested value is decoded right if |alpha z + e| < D2 / 2, see `nested.py`. For z Gaussian, alpha z
of deviation tau fine steps, e uniform, Q the upper tail and phi the density of the normal law,

    P(wrong) = 2 [w Q(w / tau) - tau phi(w / tau)],  w from (ratio - 1) / 2 to (ratio + 1) / 2

For workers x_i = g + n_i with noise of variance v, and y the mean of k plain ones decoded with
errors of variance D1^2 / 12, the variance of z = x - y is v + (v + D1^2 / 12) / k. The spread of
the plain workers shows v + D1^2 / 12. Where there is only one, a nested worker is held against it:
w = alpha z + e is then seen modulo `ratio` fine steps, which does not change the mean of

    cos(2 pi w / ratio),   exp(-2 (pi tau / ratio)^2) sin(pi / ratio) / (pi / ratio)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gradwire.codec import Key
from gradwire.kernels.layout import TILE, packed_nbytes

if TYPE_CHECKING:
    from gradwire.codecs.nested import NDQSG

_RUN, _MAX_RUNS = 4096, 16
"""What is looked at: up to 16 stretches of about 4096 values."""


class Received(NamedTuple):
    """One worker's payload, read: fine steps of its blocks, and codes packed at `width`."""

    nested: bool
    steps: Tensor
    codes: Tensor
    width: int
    key: Key


def failure_rate(codec: NDQSG, parts: Sequence[Received], numel: int, offset: int) -> float:
    """The share of values that nested payloads like these get wrong; 1 if nothing is finite."""
    if not numel:
        return 0.0
    size = max(codec.block or TILE, TILE)
    size *= max(1, _RUN // size)
    rates = []
    for start in range(0, numel, size * -(-numel // (size * _MAX_RUNS))):
        stop = min(start + size, numel)
        run = [_cut(part, start, stop, codec.block) for part in parts]
        tau = _deviation(codec, run, stop - start, offset + start)
        rates.append(wrong(tau, codec.ratio).view(-1))
    return float(torch.cat(rates).nanmean().nan_to_num(1.0))


def wrong(tau: Tensor, ratio: int) -> Tensor:
    """The chance that a value is decoded wrong."""

    def integral(w: float) -> Tensor:
        at = w / tau
        tail = torch.special.erfc(at / math.sqrt(2)) / 2
        density = torch.exp(-at.square() / 2) / math.sqrt(2 * math.pi)
        return torch.as_tensor(w * tail - tau * density)

    chance = 2 * (integral((ratio + 1) / 2) - integral((ratio - 1) / 2))
    return torch.where(tau == 0, 0.0, chance)


def _cut(part: Received, start: int, stop: int, block: int | None) -> Received:
    codes = part.codes[packed_nbytes(start, part.width) :]
    steps = part.steps[start // block : -(-stop // block)] if block else part.steps
    return part._replace(steps=steps, codes=codes)


def _deviation(codec: NDQSG, parts: Sequence[Received], numel: int, offset: int) -> Tensor:
    """tau of each block and nested worker; how it is seen depends on the plain workers."""
    plain = [part for part in parts if not part.nested]
    if len(plain) == 1 and len(parts) > 1:
        return _folded_deviation(codec, parts, numel, offset)
    values = torch.empty(len(plain), numel)
    for part, row in zip(plain, values, strict=True):
        codec.decode_plain(part, row, offset)
    noise = _stack(part.steps for part in plain).square().mean(0) / 12
    k = len(parts) - codec.num_dependent(len(parts))
    variance = _block_means(values.double().var(0), codec.block) * (1 + 1 / k) - noise
    steps = _stack(part.steps for part in parts if codec.is_nested(part.key.rank))
    return torch.where(steps == 0, 0.0, codec.alpha * variance.clamp_min(0).sqrt() / steps)


def _folded_deviation(codec: NDQSG, parts: Sequence[Received], numel: int, offset: int) -> Tensor:
    """tau from how far the first nested worker comes to lie from the only plain one."""
    plain = next(part for part in parts if not part.nested)
    nested = next(part for part in parts if part.nested)
    y = torch.empty(numel)
    codec.decode_plain(plain, y, offset)
    total = y.clone()
    codec.add_nested(nested, total, 1, offset)
    steps = nested.steps.double()
    each = steps.repeat_interleave(codec.block or numel)[:numel]
    turns = (total - 2 * y).double() / (codec.alpha * codec.ratio * each)  # alpha z + e, folded
    cosine = _block_means(torch.cos(2 * math.pi * turns), codec.block)
    cosine /= math.sin(math.pi / codec.ratio) / (math.pi / codec.ratio)
    tau = codec.ratio / math.pi * (-cosine.clamp(1e-3, 1).log() / 2).sqrt()
    return torch.where(steps == 0, 0.0, tau)


def _stack(rows: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(rows)).double()


def _block_means(values: Tensor, block: int | None) -> Tensor:
    return torch.stack([part.mean() for part in torch.split(values, block or len(values))])
