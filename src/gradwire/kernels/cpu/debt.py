"""Debts in Numba: what is due is added to a tile that is read, and what is owed written of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.kernels.cpu.calls import array
from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.intrinsics import exact_level, level
from gradwire.kernels.cpu.octets import byte_pointer, float_pointer, half_pointer
from gradwire.kernels.formats.debt import Debt

_NOTHING = np.empty(0, np.float32)


def due_of(x: Tensor, debt: Debt | None) -> Any:
    """A vector as `load_tile` takes it: its memory, and with a debt the residual and its share."""
    if debt is None:
        return array(x)
    return array(x), _residual(debt), _shares(debt)[0]


def owing(debt: Debt | None) -> Any:
    """Where `owe` writes, the residual, and the share of it that is not due; None: no debt."""
    return None if debt is None else (array(debt.owed), _residual(debt), _shares(debt)[1])


def part(values: Any, start: int, stop: int) -> Any:
    """Values `start` to `stop` of all arrays there are."""
    if not isinstance(values, tuple):
        return None if values is None else values[start:stop]
    *arrays, share = values
    return *(each[start:stop] for each in arrays), share


def _residual(debt: Debt) -> Any:
    return _NOTHING if debt.residual is None else array(debt.residual)


def _shares(debt: Debt) -> tuple[Any, Any]:
    """What is due and what is not; NaN: all is due, and nothing is added for what is not."""
    if debt.shares is None:
        return np.float32(1), np.float32(np.nan)
    due, rest = debt.shares.tolist()
    return np.float32(due), np.float32(rest)


@jit
def owe(values, codes, count, zero, unit, owing, at):  # type: ignore[no-untyped-def]
    """What the codes of a block do not say of its values, which begin with value `at`.

    Values and codes are addresses, and so is the dither of the function below.
    """
    own, code = float_pointer(values), byte_pointer(codes)
    owed = float_pointer(owing[0].ctypes.data + 4 * at)
    for i in range(count):
        owed[i] = own[i] + level(code[i], zero) * unit
    _add_rest(count, owing, at)


@jit
def owe_dithered(values, codes, dither, count, zero, unit, owing, at):  # type: ignore[no-untyped-def]
    """The same where the dither is subtracted."""
    own, code, noise = float_pointer(values), byte_pointer(codes), half_pointer(dither)
    owed = float_pointer(owing[0].ctypes.data + 4 * at)
    for i in range(count):
        owed[i] = own[i] + exact_level(code[i], zero, noise[i]) * unit
    _add_rest(count, owing, at)


@jit
def _add_rest(count, owing, at):  # type: ignore[no-untyped-def]
    owed, residual, rest = owing
    if len(residual) and not np.isnan(rest):
        for i in range(at, at + count):
            owed[i] += residual[i] * rest
