"""Values as signs and levels in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.levels import (
    LAST_STEP,
    NEAR,
    REACH,
    SHIFT,
    SPOILT,
    STEP_BITS,
    TOP,
    rise,
)
from gradwire.kernels.reference.pack import pack_codes, unpack_codes
from gradwire.kernels.reference.sparse import read_bits

_RISES = torch.tensor([rise(step) for step in range(LAST_STEP + 1)])


def fit_levels(kept: Tensor, levels: Tensor, codes: Tensor, *, bits: int) -> int:
    spoilt = kept.isnan()
    coded = (kept != 0) & ~spoilt
    magnitudes = torch.where(coded, kept, 0.0).abs().double()
    words = _fit(magnitudes.sort(dim=1, descending=True).values, coded.count_nonzero(1), bits)
    words = torch.where(spoilt[:, 0], SPOILT, words)
    levels.copy_(torch.stack((words & 255, words >> 8), 1).view(-1))
    lower, upper = (each.double()[:, None] for each in _levels(words))
    is_upper = (bits > 1) & (magnitudes > (lower + upper) / 2)
    pack_codes(((kept < 0) + 2 * is_upper)[coded], codes, bits)
    return int(coded.count_nonzero())


def add_levels(
    bitmap: Tensor,
    levels: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    block: int,
    bits: int,
    weight: float = 1.0,
) -> None:
    octets = levels.view(-1, 2).to(torch.int64)
    words = octets[:, 0] | octets[:, 1] << 8
    places = read_bits(bitmap)[: out.numel()].nonzero()[:, 0]
    code = unpack_codes(codes, places.numel(), bits)
    lower, upper = (each[places // block] for each in _levels(words))
    values = torch.where(code >= 2, upper, lower) * torch.tensor(weight, dtype=torch.float32)
    out[places] += torch.where(code % 2 > 0, -values, values)
    out[(words == SPOILT).repeat_interleave(block)[: out.numel()]] = torch.nan


def _fit(falling: Tensor, numbers: Tensor, bits: int) -> Tensor:
    """The word of each row, of which the first `numbers` are not zero."""
    sums, total = [], torch.zeros(len(falling), dtype=torch.float64)
    for column in falling.unbind(1):
        total = total + column
        sums.append(total)
    first, rest = torch.stack(sums, 1), torch.stack([total - each for each in sums], 1)
    j, n = torch.arange(1, len(sums) + 1), numbers[:, None]
    others = (n - j).clamp_min(1)
    captured = first * first / j + torch.where(j < n, rest * rest / others, 0.0)
    captured = torch.where(j <= n if bits > 1 else j == n, captured, -1.0)
    best = captured == captured.amax(1, keepdim=True)
    cut = torch.where(best, j, len(sums)).amin(1, keepdim=True)
    upper = first.gather(1, cut - 1) / cut
    lower = torch.where(cut < n, rest.gather(1, cut - 1) / others.gather(1, cut - 1), upper)
    return torch.where(numbers > 0, _word(_mark(lower), _mark(upper))[:, 0], 0)


def _mark(mean: Tensor) -> Tensor:
    patterns = mean.float().view(torch.int32).to(torch.int64)
    return (patterns + (1 << SHIFT - 1) >> SHIFT).clamp_max(TOP)


def _word(lower: Tensor, upper: Tensor) -> Tensor:
    lower = torch.maximum(lower, upper - REACH)
    marks = upper - lower
    step = torch.where(marks <= NEAR, marks, NEAR + (marks - NEAR + 2 >> 2)).clamp_max(LAST_STEP)
    step = step - (lower + _RISES[step] > TOP).to(torch.int64)
    return lower << STEP_BITS | step


def _levels(words: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper level (float32) that each word stands for."""
    lower = words >> STEP_BITS
    upper = lower + _RISES[words & LAST_STEP]
    return _value(lower), _value(upper)


def _value(marks: Tensor) -> Tensor:
    return (marks << SHIFT).to(torch.int32).view(torch.float32)
