"""Which prefix codes there are for the codes of a quantizer, for all backends.

A vector of codes is cut into *chunks* of 4096 (`CHUNK`), and each of them chooses a *table* from a
fixed list by a byte, its id. A table is made for values of a law and for a step, in units of their
root mean square, by sums over 512 magnitudes x = 1/64, 3/64, ... with the weights of the law: a
dithered quantizer makes at least t of x with the chance clip(x / step - t + 1, 0, 1). With the
ids of `FINE`, the lowest bits of each code and its sign are sent as they are, and only the rest has
digits. Digits of the largest kind stand for all that are as large or larger; how much larger
follows in Elias's gamma code.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gradwire.kernels.exact import exp
from gradwire.kernels.formats.prefix import FINENESS, Prefix, prefix_code

CHUNK = 4096
"""Codes that share a table."""
STREAMS = 4
"""Streams of a chunk, which are read side by side."""
HEAD = 5
"""Bytes of a chunk before any body: its id, and a word of sizes (`chunks.py`)."""
OCTAVE = 4
"""Tables there are for each octave of the step."""
COARSE = range(-8, 13)
"""Steps of tables for whole codes, in such parts of an octave: 1/4 to 8."""
FINE = range(-8, -2)
"""The same for codes without their lowest bits: 1/4 to 0.6."""
MOST_LOW = 5
"""The most bits of a magnitude that are sent as they are."""
LAWS = ("gaussian", "laplace", "student")
FLAT = (1, 2, 3)
"""Tables for codes that are all as frequent, from -n to n."""
NOTHING, PLAIN = 255, 254
"""The ids of a chunk in which all codes are zero, and of one whose codes are sent as bytes."""
THRESHOLDS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96)
"""How many codes of a chunk are at least this large decides which table it gets."""
_TOP = 128
_POINTS, _PER_RMS = 512, 32
_UNIT = 1 << 14
"""The sum of weights; products of four, and sums of twelve times all of them, fit 64 bits."""


class Tables(NamedTuple):
    """All of them; by id: how many low `lows` bits there are, which row `rows`, and `costs`.

    By row: `bases`, `sizes`, `words` and `groups` of `Prefix`. Costs are those of a code that is
    zero, and then what more it costs for every one of `THRESHOLDS` that it reaches, by id.
    """

    lows: Any
    rows: Any
    costs: Any
    bases: Any
    sizes: Any
    words: Any
    groups: Any


@lru_cache(1)
def tables() -> Tables:
    """The list."""
    coarse = [_table(law, step, signed=True) for law in LAWS for step in COARSE]
    flat = [prefix_code(_flat_weights(n), _group_size(n + 1), signed=True) for n in FLAT]
    fine = [_table(law, step, signed=False) for law in LAWS for step in FINE]
    made = coarse + flat + fine
    whole = len(coarse) + len(flat)
    ids = [(0, row) for row in range(whole)] + [
        (low, whole + row) for low in range(1, MOST_LOW + 1) for row in range(len(fine))
    ]
    return Tables(
        np.array([low for low, _ in ids]),
        np.array([row for _, row in ids]),
        np.array([_rises(made[row], low) for low, row in ids], np.int32).T.copy(),
        np.array([table.base for table in made]),
        np.array([table.size for table in made]),
        np.stack([table.words for table in made]),
        np.stack([table.groups for table in made]),
    )


def gamma_bits(excess: int) -> int:
    """Bits of Elias's gamma code of 1 + `excess`."""
    return 2 * (excess + 1).bit_length() - 1


def _table(law: str, part: int, *, signed: bool) -> Prefix:
    """That of a step of 2^(part / OCTAVE)."""
    step = _root_of_two(part)
    base = next(base for least, base in _BASES if step >= least)
    reach = _reaching(law, step, 0.0 if signed else 0.5, base)
    ends = [*reach, 0]
    weights = [1 + (a - b) * _UNIT // reach[0] for a, b in pairwise(ends)]
    return prefix_code(weights, _group_size(base), signed=signed)


_BASES = ((1.6, 3), (0.8, 4), (0.55, 6), (0.35, 8), (0.0, 12))
"""From which step on digits are below which base."""


def _group_size(base: int) -> int:
    return 4 if base <= 4 else 2


def _flat_weights(levels: int) -> list[int]:
    """Of zero, of 1 to `levels` with either sign, and of what is larger."""
    return [256, *[512] * levels, 1][: max(levels + 1, 3)]


def _root_of_two(part: int) -> float:
    octaves, quarter = divmod(part, OCTAVE)
    return math.ldexp(
        (1.0, 1.189207115002721, 1.4142135623730951, 1.681792830507429)[quarter], octaves
    )


def _reaching(law: str, step: float, shift: float, base: int) -> list[int]:
    """The weight of all values, and that of values that reach 1, 2, ... `base` - 1 steps."""
    x = (np.arange(_POINTS) + 0.5) / _PER_RMS
    density = _densities()[law]
    parts = [np.full(_POINTS, FINENESS)]
    for t in range(1, base):
        chance = np.clip(x / step - (t + shift) + 1.0, 0.0, 1.0)
        parts.append(np.floor(chance * FINENESS).astype(np.int64))
    return [int((density * part).sum()) for part in parts]  # bits: integers


@lru_cache(1)
def _densities() -> dict[str, Any]:
    """The densities of the magnitudes, as integers."""
    x = ((np.arange(_POINTS) + 0.5) / _PER_RMS).tolist()
    values = {
        "gaussian": [exp(-each * each / 2) for each in x],
        "laplace": [exp(-1.4142135623730951 * each) for each in x],
        "student": [1 / ((1 + each * each) * (1 + each * each)) for each in x],
    }
    return {law: np.array([round(f * 2**30) for f in fs]) for law, fs in values.items()}


def _rises(table: Prefix, low: int) -> list[int]:
    """What a code of magnitude zero costs, and how much more one at each of `THRESHOLDS` does."""
    costs = [_cost(table, low, magnitude) for magnitude in range(_TOP)]
    ends = [0, *THRESHOLDS, _TOP]
    means = [sum(costs[a:b]) // (b - a) for a, b in pairwise(ends)]
    return [means[0], *(b - a for a, b in pairwise(means))]


def _cost(table: Prefix, low: int, magnitude: int) -> int:
    """Of a code in parts of a bit; the two signs have different low bits."""
    if low == 0:
        return _digit_cost(table, magnitude) + FINENESS * (magnitude > 0)
    both = _digit_cost(table, magnitude >> low) + _digit_cost(table, max(magnitude - 1, 0) >> low)
    return both // 2 + FINENESS * (low + 1)


def _digit_cost(table: Prefix, magnitude: int) -> int:
    excess = magnitude - (table.base - 1)
    more = FINENESS * gamma_bits(excess) if excess >= 0 else 0
    return table.costs[min(magnitude, table.base - 1)] + more
