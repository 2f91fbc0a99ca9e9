"""How many values nested payloads get wrong, from what the workers have sent.

A nested value is decoded right if |w| < D2 / 2, with w = alpha z + e of the codec's eq. (3). How
much is seen of w depends on the payloads:

- All of them are plain, as in the first step. Then the decoded values of a worker that may be
  nested have the error e already, and wrong ones are counted: `_rehearse`.
- Some are nested, and two or more plain. Each plain worker is held against the mean of the other
  plain ones, as if it were nested, and the difference shrunk to the deviation that it has from
  the mean of one worker more. Wrong ones are counted: `_leave_out`.
- Only one is plain. The first nested worker is held against it: `folded.py`.

All workers are taken to be alike. A block of zeros is never wrong, and one that is not finite does
not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.ndqsg import folded
from gradwire.kernels.formats.layout import TILE, packed_nbytes
from gradwire.key import Key

if TYPE_CHECKING:
    from gradwire.codecs.ndqsg.lattice import Lattice

_RUN, _MAX_RUNS = 4096, 16
"""What is looked at: up to 16 stretches of about 4096 values."""
Run = tuple[int, int]
"""Where a stretch starts and stops."""


class Received(NamedTuple):
    """One worker's payload, read: fine steps of its blocks, and codes packed at `width`."""

    nested: bool
    steps: Tensor
    codes: Tensor
    width: int
    key: Key


class Tally(NamedTuple):
    """How many values were looked at, and how many of them are wrong, or are expected to be."""

    seen: int
    wrong: float


class Sample(NamedTuple):
    """What one worker says of some stretches, one after the other, in float64.

    steps: that of every value, or the only one there is.
    """

    values: Tensor
    steps: Tensor
    may_be_nested: bool


def failure_rate(codec: Lattice, parts: Sequence[Received], numel: int, offset: int) -> float:
    """The share of values that nested payloads like these get wrong; 1 if nothing is finite."""
    if not numel:
        return 0.0
    size = max(codec.block or TILE, TILE)
    size *= max(1, _RUN // size)
    starts = range(0, numel, size * -(-numel // (size * _MAX_RUNS)))
    runs = [(start, min(start + size, numel)) for start in starts]
    together = max(1, _RUN * _MAX_RUNS // size)
    groups = [runs[at : at + together] for at in range(0, len(runs), together)]
    seen, wrong = _sum([_look(codec, parts, group, offset) for group in groups])
    return wrong / seen if seen else 1.0


def _look(codec: Lattice, parts: Sequence[Received], runs: Sequence[Run], offset: int) -> Tally:
    """The tally of some stretches."""
    plain = [part for part in parts if not part.nested]
    nested = [part for part in parts if part.nested]
    if nested and len(plain) == 1:
        return _sum([_unfold(codec, plain[0], nested[0], run, offset) for run in runs])
    samples = [_sample(codec, part, runs, offset) for part in plain]
    return _leave_out(codec, samples) if nested else _rehearse(codec, samples)


def _sample(codec: Lattice, part: Received, runs: Sequence[Run], offset: int) -> Sample:
    """Joined, as each call for a few thousand values takes longer than its work."""
    values = torch.cat([_decoded(codec, _cut(codec, part, run), run, offset) for run in runs])
    steps = part.steps.double()
    if codec.block:
        steps = torch.cat([_each(codec, _cut(codec, part, run), run) for run in runs])
    return Sample(values, steps, codec.is_nested(part.key.rank))


def _cut(codec: Lattice, part: Received, run: Run) -> Received:
    (start, stop), block = run, codec.block
    codes = part.codes[packed_nbytes(start, part.width) :]
    steps = part.steps[start // block : -(-stop // block)] if block else part.steps
    return part._replace(steps=steps, codes=codes)


def _rehearse(codec: Lattice, samples: Sequence[Sample]) -> Tally:
    """What would have come of the workers that may be nested: one after the other, as decoded."""
    first = [sample for sample in samples if not sample.may_be_nested]
    later = [sample for sample in samples if sample.may_be_nested]
    total = _total([sample.values for sample in first])
    tallies = []
    for count, (values, steps, _) in enumerate(later, len(first)):
        y = total / count
        w = codec.alpha * (values - y)
        tallies.append(_count(codec, w, steps))
        cell = codec.ratio * steps
        result = y + codec.alpha * (w - cell * (w / cell).round())
        total = total + torch.where(steps == 0, 0.0, result)
    return _sum(tallies)


def _leave_out(codec: Lattice, samples: Sequence[Sample]) -> Tally:
    """Each plain worker against the mean of the others."""
    total, others = _total([sample.values for sample in samples]), len(samples) - 1
    shrink = codec.alpha * math.sqrt((1 + 1 / len(samples)) / (1 + 1 / others))
    tallies = []
    for values, steps, _ in samples:
        w = shrink * (values - (total - values) / others)
        tallies.append(_count(codec, w, steps))
    return _sum(tallies)


def _unfold(codec: Lattice, plain: Received, nested: Received, run: Run, offset: int) -> Tally:
    """The first nested worker against the only plain one."""
    plain, nested = _cut(codec, plain, run), _cut(codec, nested, run)
    y, each = _decoded(codec, plain, run, offset), _each(codec, nested, run)
    total = y.float()
    codec.add_nested(nested, total, 1, offset + run[0])
    turns = (total.double() - 2 * y) / (codec.alpha * codec.ratio * each)
    steps, errors = nested.steps.double(), codec.alpha * plain.steps.double()
    block = codec.block or len(y)
    chances, counts = folded.chances(turns, steps, errors / steps, codec.ratio, block)
    zeros = int((each == 0).count_nonzero())
    wrong = sum(chance * n for chance, n in zip(chances, counts, strict=True))
    return Tally(sum(counts) + zeros, wrong)


def _count(codec: Lattice, w: Tensor, steps: Tensor) -> Tally:
    """Count values that are too far off.

    `w` holds the error of a plain payload `alpha` times. A nested one would have it once, and what
    is missing may add to `w`.
    """
    finite = w.isfinite() & steps.isfinite()
    limit = (codec.ratio - (1 - codec.alpha)) / 2 * steps
    wrong = finite & (steps > 0) & (w.abs() >= limit)
    return Tally(int(finite.count_nonzero()), int(wrong.count_nonzero()))


def _sum(tallies: Sequence[Tally]) -> Tally:
    return Tally(sum(tally.seen for tally in tallies), sum(tally.wrong for tally in tallies))


def _total(vectors: Sequence[Tensor]) -> Tensor:
    """Their sum, in order."""
    total = vectors[0]
    for vector in vectors[1:]:
        total = total + vector
    return total


def _decoded(codec: Lattice, part: Received, run: Run, offset: int) -> Tensor:
    """The values of a stretch, whose payload was cut."""
    out = torch.empty(run[1] - run[0])
    codec.decode_plain(part, out, offset + run[0])
    return out.double()


def _each(codec: Lattice, part: Received, run: Run) -> Tensor:
    """The step of every value."""
    numel = run[1] - run[0]
    return part.steps.double().repeat_interleave(codec.block or numel)[:numel]
