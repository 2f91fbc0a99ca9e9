"""How a quantized vector lies in memory, for all backends.

A vector is cut into *blocks*, which share a scale, and into *tiles* of 512 values, which are
quantized and packed together; a tile holds one or more whole blocks or a block whole tiles. The
last tile is padded with zeros to a multiple of 8 values. Inside a tile of T values:

- value i takes 16 random bits, the i-th half-word of T / 8 Philox outputs laid out plane by
  plane (all first words, all second words, ...), low half first; output j of the tile that
  starts at value p has counter word p / 8 + j;
- a code of `width` bits is cut into digits of 8, 4, 2 and 1 bits, the widest lowest (7 is
  4 + 2 + 1), and the digits of the tile are packed one kind after the other: byte k of the
  T * w / 8 bytes of a w-bit digit holds those of the values k, k + T * w / 8, ..., first lowest.

Neighbouring values thus go to neighbouring bytes, and every loop is a long vector loop.
"""

from __future__ import annotations

TILE = 512
MAX_WIDTH = 16
"""Bits of the widest packed code."""
MAX_BLOCK = 1 << 31
MIN_SCALE = 2.0**-100
"""Scales below this are raised to it, so that 1 / scale is finite. Zeros stay exact zeros."""
MAX_SCALE = 2.0**127
"""Scales above this are lowered to it, and larger values clipped, so that half a step more than the
largest value is finite. So are the means of what any number of workers have sent."""

MOST = 127
"""Levels that codes of a given step have on each side of zero."""


def digits(width: int) -> list[tuple[int, int]]:
    """(bits, how far from the lowest bit) of the digits of a code.

    >>> digits(7)
    [(4, 0), (2, 4), (1, 6)]
    >>> digits(10)
    [(8, 0), (2, 8)]
    """
    sizes = [8] * (width // 8) + [size for size in (4, 2, 1) if width & size]
    return [(size, sum(sizes[:i])) for i, size in enumerate(sizes)]


def check_block(block: int | None) -> None:
    """Refuse a block that does not fit tiles."""
    if block is None:
        return
    fits = isinstance(block, int) and 8 <= block <= MAX_BLOCK
    if not fits or (TILE % block and block % TILE):
        raise ValueError(
            f"`block` must be a power of two from 8 to {TILE}, a multiple of {TILE} up to 2**31, "
            f"or None for the whole tensor, got {block!r}."
        )


def grain_of(block: int | None) -> int | None:
    """The values that stay together when a vector is cut: whole blocks and tiles; None: all."""
    return None if block is None else max(block, TILE)


def num_blocks(numel: int, block: int | None) -> int:
    """Scales of a vector of `numel` values."""
    return -(-numel // block) if block is not None else min(numel, 1)


def packed_nbytes(numel: int, width: int) -> int:
    """Bytes of the packed codes of `numel` values, the padding of the last tile included."""
    return width * -(-numel // 8)
