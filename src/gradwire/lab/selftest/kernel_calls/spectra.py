"""Calls of spectra."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.kernels import cpu
from gradwire.kernels.formats.spectra import Form, Kept
from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.values import LENGTHS, STORES, bitmap_nbytes, finite, soiled

FORMS = [
    Form(8, 3, 4, 1), Form(64, 64, None, 1), Form(64, 9, 10, 5), Form(256, 96, 4, 1),
    Form(128, 5, 16, 9), Form(1024, 600, 3, 0), Form(32, 1, None, 1),
]  # fmt: skip


def lengths(numel: int, block: int) -> tuple[int, ...]:
    """Besides `numel`, once, whole groups of eight blocks, which are transformed at a time."""
    return (numel, 8 * block, 17 * block + 3) if numel == LENGTHS[-1] else (numel,)


def signals(numel: int) -> tuple[Tensor, ...]:
    """Ties, zeros, subnormals, values that overflow, inf and NaN."""
    x, zeros = finite(numel), torch.zeros(numel)
    bad = x.clone()
    bad[numel // 3 :: 700], bad[numel // 2 :: 900], zeros[::3] = torch.inf, torch.nan, -0.0
    return x, x.round(), zeros, x * 1e-38, x.clamp(-1, 1) * 3e38, bad


def room_for(numel: int, form: Form) -> Kept:
    sizes = form.scales_nbytes(numel), bitmap_nbytes(numel), form.codes_nbytes(numel)
    return Kept(*(soiled(size, dtype=torch.uint8) for size in sizes))


def kept_of(numel: int, form: Form, domain: str, seed: int) -> Kept:
    """What is kept of a vector."""
    x, room = finite(numel, seed=seed), room_for(numel, form)
    cpu.keep_spectra(x, [], room, None, domain=domain, form=form)
    return room


def spectra(numel: int) -> Iterator[tuple[int, Form, str]]:
    """(length, form, domain): every form in some domain, and strips of eight blocks once."""
    domains = itertools.cycle(("time", "fft", "dct", "fft"))
    for form in FORMS:
        for size in lengths(numel, form.block):
            yield size, form, next(domains)


@float32_only
def keep_spectra(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for size, form, domain in spectra(numel):
        others = [kept_of(size, form, domain, seed) for seed in (1, 2)]
        how = {"domain": domain, "form": form}
        for x in signals(size):
            yield call(x, [], room_for(size, form), None, **how)
            yield call(x, others, room_for(size, form), soiled(size), **how)


def damaged(kept: Kept, numel: int) -> Iterator[Kept]:
    """A coefficient too many or too few, a scale beyond all, and a bit where nothing is."""
    for part, at, mask in ((kept.bitmap, 0, 1), (kept.scales, 1, 0xFF), (kept.bitmap, -1, 0x80)):
        if part.numel() and (mask != 0x80 or numel % 64):
            broken = part.clone()
            broken[at] ^= mask
            yield Kept(*(broken if each is part else each for each in kept))


@float32_only
def add_spectra(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for size, form, domain in spectra(numel):
        kept = [kept_of(size, form, domain, seed) for seed in (1, 2, 3)]
        bad = room_for(size, form)
        cpu.keep_spectra(signals(size)[-1], [], bad, None, domain=domain, form=form)
        for store in STORES:
            yield call([*kept, bad], soiled(size), domain=domain, form=form, **store)
            yield call(kept[:1], soiled(size), domain=domain, form=form, **store)
        for broken in damaged(kept[0], size):
            yield call([kept[1], broken], soiled(size), domain=domain, form=form)
