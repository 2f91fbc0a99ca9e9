"""Floats without loss in Numba.

All but three loops are vector loops over a chunk, which stays in the nearest cache: a sample of the
exponents is counted, and ranks that escape a level are picked out, or put back, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.cpu.calls import array
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.float_reader import find
from gradwire.kernels.cpu.float_writer import write_chunks
from gradwire.kernels.cpu.floats import mean_floats
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.formats.lossless import CHUNK, HEAD, KINDS, MARK
from gradwire.key import Key

_SPAN = 4 * CHUNK
"""Values of which all rows of a mean fit the second cache."""


def pack_floats(x: Tensor, payload: Tensor) -> int:
    kind = KINDS[str(x.dtype).removeprefix("torch.")]
    patterns, out = array(x).view(f"u{kind.nbytes}"), payload.numpy()
    count = -(-len(patterns) // CHUNK)
    heads, escapes = np.empty((count, 3), np.int64), np.empty((count, 4), np.int64)
    first = MARK + HEAD.itemsize * count
    bodies: dict[int, Any] = {}

    def run(start: int, stop: int) -> None:
        chunk, mask = start // CHUNK, np.uint8((1 << kind.exponent) - 1)
        room = np.empty((stop - start) * kind.nbytes + 4, np.uint8) if start else out[first:]
        part = patterns[start:stop]
        nbytes = write_chunks(part, kind.mantissa, mask, heads[chunk:], escapes[chunk:], room)
        bodies[start] = room[:nbytes]

    over_threads(len(patterns), CHUNK, run)
    end = first
    for start in sorted(bodies):
        stop = end + len(bodies[start])
        if start:
            out[end:stop] = bodies[start]
        end = stop
    out[:MARK] = kind.mark, 0, 0, 0
    rows = out[MARK:first].view(HEAD)
    rows["centre"], rows["form"], rows["number"] = heads.T
    rows["escapes"] = escapes
    return end


def unpack_floats(
    payload: Tensor, out: Tensor, *, weight: float = 1.0, accumulate: bool = False
) -> bool:
    found = find(payload, out.numel())
    if found is None:
        return False
    values, kind = array(out), found.kind
    answers: list[bool] = []

    def run(start: int, stop: int) -> None:
        part = values[start:stop]
        if out.dtype == torch.float32:
            answers.append(found.add(start, stop, part, np.float32(weight), accumulate))
        else:
            answers.append(found.unpack(start, stop, part.view(f"u{kind.nbytes}")))

    over_threads(out.numel(), CHUNK, run)
    return all(answers)


@jit
def _one_nan(values):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        values[i] = values[i] if values[i] == values[i] else np.float32(np.nan)


def mean_packed_floats(payloads: Sequence[Tensor], out: Tensor) -> bool:
    found = [each for payload in payloads if (each := find(payload, out.numel())) is not None]
    answers = [len(found) == len(payloads)]

    def run(start: int, stop: int) -> None:
        rows = torch.empty(len(found), min(_SPAN, stop - start))
        for at in range(start, stop, _SPAN):
            end = min(at + _SPAN, stop)
            for each, row in zip(found, rows.numpy(), strict=True):
                answers.append(each.add(at, end, row[: end - at], np.float32(1), False))
            mean_floats(rows[:, : end - at], out[at:end], key=Key())
            _one_nan(out[at:end].numpy())

    if all(answers):
        over_threads(out.numel(), CHUNK, run)
    return all(answers)
