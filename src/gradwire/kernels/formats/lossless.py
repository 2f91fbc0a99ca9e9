"""How floats travel without loss, for all backends.

A float is a sign, an exponent and a mantissa. Exponents of gradients are alike, so they are coded;
sign and mantissa together are the *word* of a value, the sign highest, and are sent as they are.

A vector is cut into *chunks* of 16384 values (`CHUNK`). Where +0 is frequent, a bitmap says which
values are not, and only these are coded. What is left of a chunk has

- a *width*: the bits of its words without the lowest ones, if these are zero in all of them, as in
  float32 that was bfloat16 before;
- a *centre*, c. Exponents e are coded as *ranks*, c - e modulo 256;
- a *prior*, which says in how few bits which ranks are sent. In `PRIORS[0]` three neighbours have
  2 bits each, the fourth code says that 2 more bits follow, and so on through four *levels*. Each
  of these has one more exponent above what was there before, and two below it. Exponents of
  Gaussian values fall off like 2^-k, and need 2.63 bits so, which is 0.09 above their entropy.
  `PRIORS[1]` has two levels of 4 bits, for values of many magnitudes. Ranks that no level has are
  sent as bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

CHUNK = 16384
"""Values that share a centre."""
SAMPLE = 256
"""Exponents of a chunk that are looked at to choose it."""
MARK = 4
"""Bytes before the heads: the type of the values, and zeros."""
HEAD = np.dtype([("centre", "u1"), ("form", "u1"), ("number", "<u2"), ("escapes", "<u2", 4)])
"""Of a chunk. A form is a width, and from bit 6 on a prior; the number is how many values are
coded, and `escapes` of how many ranks each level says that more bits follow."""
WIDTH = 63
"""What of a form is the width."""


class Prior(NamedTuple):
    """Levels of codes of `width` bits; `above` of each but the first are for larger exponents."""

    width: int
    above: int
    levels: int

    @property
    def top(self) -> int:
        """The code that says that more bits follow."""
        return (1 << self.width) - 1

    def first(self, level: int) -> tuple[int, int, int]:
        """Of a level, the first rank below what was there before, and above, and how many above.

        >>> [PRIORS[0].first(level) for level in range(3)]
        [(0, 255, 0), (3, 255, 1), (5, 254, 1)]
        """
        if level == 0:
            return 0, 255, 0
        low = self.top + (level - 1) * (self.top - self.above)
        return low, 255 - (level - 1) * self.above, self.above


PRIORS = (Prior(2, 1, 4), Prior(4, 5, 2))
PLAIN = 2
"""In place of a prior: values as they are."""


class Kind(NamedTuple):
    """A type of floats: how it is marked, its bytes, and its bits of mantissa and exponent."""

    mark: int
    nbytes: int
    mantissa: int
    exponent: int


KINDS = {
    "float32": Kind(0, 4, 23, 8),
    "float16": Kind(1, 2, 10, 5),
    "bfloat16": Kind(2, 2, 7, 8),
}


@lru_cache(1)
def gains() -> tuple[Any, Any]:
    """Of every prior, by rank, the bits that it saves of the 16 that a rank takes at most.

    And ranks that save any, with prior and saving, as rows.
    """
    saved = np.zeros((len(PRIORS), 256), np.int64)
    for prior, row in zip(PRIORS, saved, strict=True):
        for level in range(prior.levels):
            low, high, above = prior.first(level)
            gain = 16 - prior.width * (level + 1)
            row[low : low + prior.top - above] = gain
            row[high + 1 - above : high + 1] = gain
    places = np.argwhere(saved)
    return saved, np.column_stack((places, saved[tuple(places.T)]))


def has_bitmap(numel: Any, zeros: Any, nbytes: int) -> Any:
    """Is it shorter to say where the zeros of a chunk are?"""
    return bitmap_nbytes(numel) < zeros * nbytes


def bitmap_nbytes(numel: Any) -> Any:
    """Of a chunk, in whole words of 32 bits."""
    return 4 * -(-numel // 32)


def words_nbytes(number: Any, width: Any) -> Any:
    """Bytes of words: of 16 bits, of 8, and what is left, packed."""
    return (width // 8) * number + (width % 8) * -(-number // 8)


def max_nbytes(numel: int, nbytes: int = 4) -> int:
    """The most bytes that `numel` floats take."""
    return MARK + HEAD.itemsize * -(-numel // CHUNK) + -(-numel * nbytes // 4) * 4


def find_chunks(payload: Any, numel: int) -> tuple[Kind, Any, Any] | None:
    """The kind of floats, the heads, and where the bodies of chunks start and the last one ends.

    None if these are no chunks that fill `payload`.
    """
    count = -(-numel // CHUNK)
    first = MARK + HEAD.itemsize * count
    if len(payload) < first or payload[0] >= len(KINDS) or payload[1:MARK].any():
        return None
    kind = list(KINDS.values())[payload[0]]
    heads = payload[MARK:first].view(HEAD)
    sizes = _body_nbytes(heads, np.minimum(numel - CHUNK * np.arange(count), CHUNK), kind)
    if sizes is None:
        return None
    starts = first + np.concatenate(([0], np.cumsum(sizes)))  # bits: integers
    return (kind, heads, starts) if starts[-1] == len(payload) else None


def _body_nbytes(heads: Any, numels: Any, kind: Kind) -> Any:
    """Of every chunk; None if a head is impossible."""
    number, escapes = heads["number"].astype(np.int64), heads["escapes"].astype(np.int64)
    width, prior = (heads["form"] & WIDTH).astype(np.int64), heads["form"] >> 6
    counts = np.column_stack((number, escapes))
    is_plain = (prior == PLAIN) | (number == 0)
    said = heads["centre"] + width + escapes.sum(1)  # bits: integers
    if (
        (number > numels).any() or (counts[:, 1:] > counts[:, :-1]).any() or (prior > PLAIN).any()
        or (width > kind.mantissa + 1).any() or said[is_plain].any()
        or escapes[prior == 1, PRIORS[1].levels :].any()
    ):  # fmt: skip
        return None
    eighths = -(-counts // 8)
    narrow = eighths[:, :4].sum(1) * PRIORS[0].width + escapes[:, 3]  # bits: integers
    wide = eighths[:, :2].sum(1) * PRIORS[1].width + escapes[:, 1]  # bits: integers
    coded = words_nbytes(number, width) + np.where(prior == 0, narrow, wide)
    bitmap = np.where((number > 0) & (number < numels), bitmap_nbytes(numels), 0)
    sizes = np.where(is_plain, number * kind.nbytes, coded) + bitmap
    return -(-sizes // 4) * 4
