"""How integers that the network adds lie in 32-bit words.

A quantizer with `levels` levels sends codes in [0, 2 * levels], and the sum of the codes of n
workers is in [0, 2 * n * levels]. A *field* is just wide enough for that sum, so that adding
whole words adds all their fields at once and none runs over into the next.

A tile of T values (`layout.py`) takes W = ceil(T / F) words of F = 32 // width fields: word k
holds the values k, k + W, k + 2 W, ..., the first lowest. Fields without a value are zero. The
top field may reach the sign bit: the sum of int32 words wraps, and its bits are right.
"""

from __future__ import annotations

from typing import NamedTuple

from gradwire.kernels.formats.layout import TILE
from gradwire.key import Key

WORD = 32


def field_width(levels: float, terms: int) -> int:
    """Bits that the sum of `terms` codes takes.

    >>> field_width(7, 4), field_width(1.5, 4)
    (6, 4)
    """
    width = int(2 * levels * terms).bit_length()
    if width > WORD:
        raise ValueError(
            f"a sum of {terms} codes of {levels:g} levels takes {width} bits and a word has "
            f"{WORD}; use fewer levels, or the collective `two_shot`, which sums no codes."
        )
    return width


def words_per_tile(size: int, width: int) -> int:
    """Words of a tile of `size` values.

    >>> words_per_tile(512, 6)
    103
    """
    return -(-size // (WORD // width))


def num_words(numel: int, width: int) -> int:
    """Words of `numel` values; the last tile is padded to a multiple of 8 values."""
    full, rest = divmod(numel, TILE)
    last = words_per_tile(-(-rest // 8) * 8, width)
    return full * words_per_tile(TILE, width) + last


class Dither(NamedTuple):
    """A dither that the decoder subtracts, for codes or for the sum of several.

    With u the 16 random bits that `key` gives the value at its position (`offset` is that of the
    first one), the dither is (`times` * u + `shift`) mod 2^16, and a value is its level plus
    (`centre` - 2 * dither) / 2^17 steps.
    """

    key: Key
    offset: int
    times: int
    shift: int
    centre: int


def zero_of(levels: float, terms: int, dither: Dither | None) -> tuple[int, Dither | None]:
    """What `terms` codes of nothing add up to, and the dither; of a half, the dither takes it off.

    >>> zero_of(7, 3, None), zero_of(1.5, 4, None)
    ((21, None), (6, None))
    """
    zero, half = divmod(int(2 * levels * terms), 2)
    if half:
        assert dither is not None, "a half has no place in an integer"
        dither = dither._replace(centre=dither.centre - (1 << 16))
    return zero, dither
