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


def failure_rate(codec: Lattice, parts: Sequence[Received], numel: int, offset: int) -> float:
    """The share of values that nested payloads like these get wrong; 1 if nothing is finite."""
    if not numel:
        return 0.0
    size = max(codec.block or TILE, TILE)
    size *= max(1, _RUN // size)
    tallies = []
    for start in range(0, numel, size * -(-numel // (size * _MAX_RUNS))):
        stop = min(start + size, numel)
        run = [_cut(part, start, stop, codec.block) for part in parts]
        tallies.append(_look(codec, run, stop - start, offset + start))
    seen, wrong = _sum(tallies)
    return wrong / seen if seen else 1.0


def _cut(part: Received, start: int, stop: int, block: int | None) -> Received:
    codes = part.codes[packed_nbytes(start, part.width) :]
    steps = part.steps[start // block : -(-stop // block)] if block else part.steps
    return part._replace(steps=steps, codes=codes)


def _look(codec: Lattice, parts: Sequence[Received], numel: int, offset: int) -> Tally:
    """The tally of one stretch."""
    plain = [part for part in parts if not part.nested]
    nested = [part for part in parts if part.nested]
    if not nested:
        return _rehearse(codec, parts, numel, offset)
    if len(plain) > 1:
        return _leave_out(codec, plain, numel, offset)
    return _unfold(codec, plain[0], nested[0], numel, offset)


def _rehearse(codec: Lattice, parts: Sequence[Received], numel: int, offset: int) -> Tally:
    """What would have come of the workers that may be nested: one after the other, as decoded."""
    first = [part for part in parts if not codec.is_nested(part.key.rank)]
    later = [part for part in parts if codec.is_nested(part.key.rank)]
    total = _total([_decoded(codec, part, numel, offset) for part in first])
    tallies = []
    for count, part in enumerate(later, len(first)):
        y, steps = total / count, _each(codec, part, numel)
        w = codec.alpha * (_decoded(codec, part, numel, offset) - y)
        tallies.append(_count(codec, w, steps))
        cell = codec.ratio * steps
        result = y + codec.alpha * (w - cell * (w / cell).round())
        total = total + torch.where(steps == 0, 0.0, result)
    return _sum(tallies)


def _leave_out(codec: Lattice, plain: Sequence[Received], numel: int, offset: int) -> Tally:
    """Each plain worker against the mean of the others."""
    values = [_decoded(codec, part, numel, offset) for part in plain]
    total, others = _total(values), len(plain) - 1
    shrink = codec.alpha * math.sqrt((1 + 1 / len(plain)) / (1 + 1 / others))
    tallies = []
    for value, part in zip(values, plain, strict=True):
        w = shrink * (value - (total - value) / others)
        tallies.append(_count(codec, w, _each(codec, part, numel)))
    return _sum(tallies)


def _unfold(codec: Lattice, plain: Received, nested: Received, numel: int, offset: int) -> Tally:
    """The first nested worker against the only plain one."""
    y = _decoded(codec, plain, numel, offset)
    total = y.float()
    codec.add_nested(nested, total, 1, offset)
    cells = codec.alpha * codec.ratio * _each(codec, nested, numel)
    turns = (total.double() - 2 * y) / cells
    steps, errors = nested.steps.double(), codec.alpha * plain.steps.double()
    block = codec.block or numel
    chances, counts = folded.chances(turns, steps, errors / steps, codec.ratio, block)
    zeros = int((_each(codec, nested, numel) == 0).count_nonzero())
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


def _decoded(codec: Lattice, part: Received, numel: int, offset: int) -> Tensor:
    out = torch.empty(numel)
    codec.decode_plain(part, out, offset)
    return out.double()


def _each(codec: Lattice, part: Received, numel: int) -> Tensor:
    """The step of every value."""
    return part.steps.double().repeat_interleave(codec.block or numel)[:numel]
