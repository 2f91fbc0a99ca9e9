"""Where the tables of prefix codes are, for Numba."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.octets import load64
from gradwire.kernels.formats.huffman import tables
from gradwire.kernels.formats.prefix import LIMIT

_ROW = 4 << LIMIT
"""Bytes of a row of words or groups."""


class Addresses(NamedTuple):
    """Those of the fields of `Tables`, and how many tables there are."""

    number: int
    lows: int
    rows: int
    costs: int
    bases: int
    sizes: int
    words: int
    groups: int


@lru_cache(1)
def addresses() -> Addresses:
    """They stay where they are."""
    return Addresses(len(tables().lows), *(field.ctypes.data for field in tables()))


@jit
def look_up(at, table):  # type: ignore[no-untyped-def]
    """(low, base, digits of a group, address of its words, address of its groups) of a table."""
    row = np.int64(load64(at.rows + 8 * table))
    low, base = np.int64(load64(at.lows + 8 * table)), np.int64(load64(at.bases + 8 * row))
    group = np.int64(load64(at.sizes + 8 * row))
    return low, base, group, at.words + _ROW * row, at.groups + _ROW * row
