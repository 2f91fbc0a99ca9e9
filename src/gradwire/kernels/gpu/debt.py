"""Debts in Triton: what is due is added to a group that is read, and what is owed written of it."""

from __future__ import annotations

import triton.language as tl

from gradwire.kernels.gpu.compiler import jit
from gradwire.kernels.gpu.tiles import (
    GROUP,
    load_eighths,
    skip,
    store_eighth,
    sums_of,
)

NO_DEBT = (None, None, None)
"""Of what is None nothing is compiled."""


@jit
def load_residual(residual, stride, left):
    """The eighths of what was owed, if anything was."""
    values = None
    if residual is not None:
        values = load_eighths(skip(residual, GROUP), stride, left)
    return values


@jit
def load_source(x, residual, shares, stride, left):
    """Eighths of what is encoded: the values and what is due of the residual, which was loaded."""
    values = load_eighths(skip(x, GROUP), stride, left)
    if residual is not None:
        values = sums_of(values, _parts(residual, shares, 0))
    return values


@jit
def _parts(residual, shares, which: tl.constexpr):
    """What is due of the residual, or what is not."""
    values = residual
    if shares is not None:
        share = tl.load(shares + which)
        values = ()
        for s in tl.static_range(8):
            values += (residual[s] * share,)
    return values


@jit
def owe(owed, values, residual, shares, stride, left):
    """Write what was not said of a group, and what was not due."""
    if residual is not None and shares is not None:
        values = sums_of(values, _parts(residual, shares, 1))
    for s in tl.static_range(8):
        store_eighth(skip(owed, GROUP), values[s], stride, left, s)
