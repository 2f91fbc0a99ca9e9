"""How a vector is rotated, block by block, for all backends.

A block of B values is a matrix of rows of 16. Its rotation has two stages. Each changes the signs
of values at random and then adds and subtracts pairs, (a, b) -> (a + b, a - b), at distances of s
for s = `first`, 2 `first`, 4 `first`, ..., B / 2:

    y = turn(signs_2 * turn(signs_1 * x, first=16), first=1)

The first stage spreads every value over its column, the second one over the whole block. Both are
their own inverse but for a factor, so `back` runs through them the other way. Nothing is divided on
the way: y is B / 4 times as long as x.

The last block is padded with zeros to a power of two, 512 or more. A stretch of 4096 values takes
its signs from 64 Philox outputs, laid out plane by plane (all first words, all second words, ...);
output j of the stretch that starts at value p has counter word p / 64 + j. Tile t of the stretch,
of 512 values, has the 32 words from 32 t on, 16 for each stage: bit k of word j, if it is set,
changes the sign of value 16 k + j.

Sums over a block have one order: 128 of them side by side, of the values i with the same i mod 128
in rising order, and then by halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gradwire.kernels.formats.layout import TILE

LEAST_BLOCK, MOST_BLOCK = 512, 4096
LANES = 16
SLOTS = 128
STRETCH, COUNTERS = 4096, 64
"""Values whose signs are drawn together, and Philox outputs that they take."""
CEILING = 2.0**127
"""Larger values count as this, so that what is decoded to has room above it."""
LARGEST = (2.0 - 2.0**-23) * 2.0**127
SHORTER = 2.0**-6
"""Vectors that stay rotated are so much as long as they were, to fit float32 whatever they are."""
MARGIN = 2.0**-24
"""Values are so much smaller while they are rotated back, which keeps sums finite."""

LEVELS = {
    1: (0.7978845608028654,),
    2: (0.452780034636492, 1.5104176084990954),
    3: (0.24509417894422167, 0.7560052812058773, 1.3439092785049999, 2.1519457045369873),
    4: (
        0.12839502985114701, 0.3880482994902902, 0.6567591185324634, 0.9423404564869614,
        1.2562311973471772, 1.6180463860218826, 2.0690172265313866, 2.732589570995163,
    ),
}  # fmt: skip
"""The positive levels that are best for N(0, 1), by bits. A code is the place of a level among
them, and its highest bit the sign."""


def check_block(block: int) -> None:
    """Refuse what cannot be rotated."""
    within = isinstance(block, int) and LEAST_BLOCK <= block <= MOST_BLOCK
    if not within or block & (block - 1):
        raise ValueError(
            f"`block` must be a power of two from {LEAST_BLOCK} to {MOST_BLOCK}, got {block!r}."
        )


def thresholds(bits: int) -> list[float]:
    """Where one level ends and the next begins: halfway.

    >>> thresholds(2)
    [0.9815988215677938]
    """
    levels = LEVELS[bits]
    return [(low + high) * 0.5 for low, high in pairwise(levels)]


def spans(numel: int, block: int) -> Iterator[tuple[int, int, int, int]]:
    """(first value, last, how many blocks, how large): the whole blocks, then the padded one.

    >>> list(spans(2600, 1024))
    [(0, 2048, 2, 1024), (2048, 2600, 1, 1024)]
    """
    whole = numel // block
    if whole:
        yield 0, whole * block, whole, block
    if numel % block:
        yield whole * block, numel, 1, padded_size(numel % block)


def padded_size(numel: int) -> int:
    """The values of a block that holds `numel`."""
    return max(TILE, 1 << (numel - 1).bit_length())


def padded_numel(numel: int, block: int) -> int:
    """The values of all blocks, the padding included."""
    return sum(rows * size for _, _, rows, size in spans(numel, block))
