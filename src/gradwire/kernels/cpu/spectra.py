"""The largest coefficients of every block in Numba: one pass over memory.

A strip of eight blocks at a time is transformed, what others sent is added, and the largest are
found, rounded and packed, all in cache: nothing but values and codes goes through memory. What is
left after the last whole strip is transformed apart, and then is a strip like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.cpu.calls import array
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.kept import add_strip, keep_strip, room_of
from gradwire.kernels.cpu.lanes import LANES
from gradwire.kernels.cpu.largest import FIRST_GUESS
from gradwire.kernels.cpu.octets import octets_at
from gradwire.kernels.cpu.threads import over_threads
from gradwire.kernels.cpu.transforms import plan_of, transform, transform_back, turn
from gradwire.kernels.formats.spectra import STRIP, Form, Kept

_NOWHERE = np.empty(0, np.float32)


@jit
def _store(c, out, weight, accumulate):  # type: ignore[no-untyped-def]
    for i in range(len(c)):
        out[i] = out[i] + c[i] * weight[0] if accumulate else c[i] * weight[0]


@jit
def _keep_all(x, others, kept, rest, number, form, first, numel, rows, plans, turns):  # type: ignore[no-untyped-def]
    """For the values from `first` on, whole strips or the end of `numel`. `turns`: transform them;
    `rest` may have no room, else it gets what is not kept, times `number`."""
    size, room, guess = STRIP * form[0], room_of(form[0]), np.int64(FIRST_GUESS)
    strip, one, leaves = np.empty(size, np.float32), np.ones(1, np.float32), len(rest) > 0
    share, (scales, bitmap, codes) = np.float32(1.0 / (1 + len(others))), kept
    for at in range(0, len(x), size):
        c, last = strip[: min(size, len(x) - at)], first + min(at + size, len(x)) == numel
        if turns:
            turn(x[at : at + len(c)], c, rows, plans[0], one, False)
        else:
            _store(x[at : at + len(c)], c, one, False)
        for r in range(len(others)):
            theirs = (
                octets_at(others[r, 0], len(scales)),
                octets_at(others[r, 1], len(bitmap)),
                octets_at(others[r, 2], len(codes)),
            )
            if not add_strip(theirs[0], theirs[1], theirs[2], form, first + at, last, room, c):
                return False
        if len(others):
            _store(c, c, np.full(1, share), False)
        guess = keep_strip(c, scales, bitmap, codes, form, first + at, room, leaves, guess)
        if leaves and turns:
            turn(c, rest[at : at + len(c)], rows, plans[1], number, False)
        elif leaves:
            _store(c, rest[at : at + len(c)], number, False)
    return True


@jit
def _add_all(kept, sizes, out, form, first, numel, rows, plan, turns, weight, accumulate):  # type: ignore[no-untyped-def]
    """What the vectors `kept` say of the values from `first` on, which are `out`."""
    size, room = STRIP * form[0], room_of(form[0])
    strip = np.empty(size, np.float32)
    for at in range(0, len(out), size):
        c, last = strip[: min(size, len(out) - at)], first + min(at + size, len(out)) == numel
        c[:] = np.float32(0)
        for r in range(len(kept)):
            each = (
                octets_at(kept[r, 0], sizes[0]),
                octets_at(kept[r, 1], sizes[1]),
                octets_at(kept[r, 2], sizes[2]),
            )
            if not add_strip(each[0], each[1], each[2], form, first + at, last, room, c):
                return False
        if turns:
            turn(c, out[at : at + len(c)], rows, plan, weight, accumulate)
        else:
            _store(c, out[at : at + len(c)], weight, accumulate)
    return True


def keep_spectra(
    x: Tensor,
    others: Sequence[Kept],
    kept: Kept,
    rest: Tensor | None,
    *,
    domain: str,
    form: Form,
) -> bool | Tensor:
    values, left = array(x), _NOWHERE if rest is None else array(rest)
    arrays, addresses = tuple(array(part) for part in kept), _addresses(others)
    number, one = np.array([1 + len(others)], np.float32), np.ones(1, np.float32)
    strips, turns = _in_strips(x.numel(), form), domain != "time"
    plans = plan_of(form.block, domain == "dct", False), plan_of(form.block, domain == "dct", True)
    arrays[1][strips // 8 :] = 0

    def keep(values: Any, left: Any, first: int, number: Any, turns: bool) -> bool:
        rows = np.empty((max(form.block, LANES), LANES), np.float32)
        done = _keep_all(
            values, addresses, arrays, left, number, _numbers(form), first, x.numel(), rows, plans,
            turns,
        )  # fmt: skip
        return bool(done)

    is_whole = _over_strips(
        strips, form, lambda a, b: keep(values[a:b], left[a:b], a, number, turns)
    )
    if strips == x.numel():
        return is_whole
    tail, block = x[strips:].clone(), form.block
    ends = torch.empty(0 if rest is None else tail.numel())
    if turns:
        transform(tail, tail, domain=domain, block=block)
    is_whole &= keep(array(tail), array(ends), strips, one if turns else number, False)
    if rest is not None and turns:
        transform_back(ends, rest[strips:], domain=domain, block=block, weight=float(number[0]))
    elif rest is not None:
        rest[strips:] = ends
    return is_whole


def add_spectra(
    kept: Sequence[Kept],
    out: Tensor,
    *,
    domain: str,
    form: Form,
    weight: float = 1.0,
    accumulate: bool = False,
) -> bool | Tensor:
    addresses, sizes = _addresses(kept), tuple(part.numel() for part in kept[0])
    results, factor, one = array(out), np.array([weight], np.float32), np.ones(1, np.float32)
    strips, turns = _in_strips(out.numel(), form), domain != "time"
    plan = plan_of(form.block, domain == "dct", True)

    def add(results: Any, first: int, factor: Any, turns: bool, accumulate: bool) -> bool:
        rows = np.empty((max(form.block, LANES), LANES), np.float32)
        done = _add_all(
            addresses, sizes, results, _numbers(form), first, out.numel(), rows, plan, turns,
            factor, accumulate,
        )  # fmt: skip
        return bool(done)

    is_whole = _over_strips(
        strips, form, lambda a, b: add(results[a:b], a, factor, turns, accumulate)
    )
    if strips == out.numel():
        return is_whole
    if not turns:
        return is_whole & add(results[strips:], strips, factor, False, accumulate)
    tail = torch.empty(out.numel() - strips)
    is_whole &= add(array(tail), strips, one, False, False)
    transform_back(
        tail, out[strips:], domain=domain, block=form.block, weight=weight, accumulate=accumulate
    )
    return is_whole


def _in_strips(numel: int, form: Form) -> int:
    """How many values are in whole strips, which are transformed where they are needed."""
    return numel // (STRIP * form.block) * STRIP * form.block


def _over_strips(numel: int, form: Form, run: Callable[[int, int], bool]) -> bool:
    """Is `run` content with all spans?"""
    verdicts: list[bool] = []
    if numel:
        size = STRIP * form.block
        over_threads(numel, size, lambda first, last: verdicts.append(run(first, last)))
    return all(verdicts)


def _addresses(kept: Sequence[Kept]) -> Any:
    rows = [[part.data_ptr() for part in each] for each in kept]
    return np.array(rows, np.int64).reshape(-1, 3)


def _numbers(form: Form) -> tuple[int, ...]:
    """The form as Numba takes it; 0 bits are float32."""
    return form.block, form.count, form.bits or 0, 23 - form.mantissa, form.scale_nbytes
