"""How the sizes of a chunk's streams lie in 32 bits, for all backends.

Streams are alike in size, as neighbours go to different ones; only the last has more than its
groups. So the word of a chunk has the size of the first stream in its lowest 11 bits, which are
enough for a body of less than `CHUNK` bytes, and how much larger the others are than that one: the
second plus 32 in 6 bits, the third plus 32 in 6, the last plus 64 in 8. If they differ by more,
the highest bit is set, the others are the sum of all sizes, and the sizes themselves, 16 bits each,
are the last bytes of the body.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwire.kernels.formats.huffman import CHUNK, HEAD, NOTHING, PLAIN, STREAMS, tables

FAR = 1 << 31
"""Set in a word without the sizes."""
SIZES = 2 * STREAMS
"""Bytes of the sizes behind a body."""


def word_of_sizes(a: int, b: int, c: int, d: int) -> int:
    """The word of a chunk whose streams have these sizes."""
    second, third, last = b - a + 32, c - a + 32, d - a + 64
    if (second | third) >> 6 or last >> 8:  # as it is, too, if one of them is negative
        return FAR | (a + b + c + d)
    return a | second << 11 | third << 17 | last << 23


def find_chunks(stream: Any, numel: int) -> tuple[Any, Any, Any] | None:
    """The ids, the sizes of streams, and where chunks of `numel` codes start, and the last ends.

    None if these are no chunks that fill `stream`, or if one is no smaller than plain bytes are.
    """
    count = -(-numel // CHUNK)
    if len(stream) < HEAD * count:
        return None
    ids = stream[:count]
    words = stream[count : HEAD * count].copy().view("<u4").astype(np.int64)
    coded = ids < len(tables().lows)
    plain = ids == PLAIN
    if not (coded | ((plain | (ids == NOTHING)) & (words == 0))).all():
        return None
    sizes, far = _sizes_of(words) * coded[:, None], words >= FAR
    total = np.where(far, words - FAR, sizes.sum(axis=1))  # bits: integers
    codes = np.minimum(numel - CHUNK * np.arange(count), CHUNK)
    nbytes = np.where(coded, _packed_nbytes(ids, codes) + total + SIZES * far, codes * plain)
    starts = HEAD * count + np.concatenate(([0], np.cumsum(nbytes)))  # bits: integers
    if (sizes < 0).any() or (nbytes >= codes)[coded].any() or starts[-1] != len(stream):
        return None
    places = starts[1:][far, None] - SIZES + np.arange(SIZES)
    sizes[far] = stream[places].view("<u2")
    return None if (sizes.sum(axis=1) != total).any() else (ids, sizes, starts)  # bits: integers


def _sizes_of(words: Any) -> Any:
    """Of streams by chunk; 0 if they are behind the body."""
    first = words & 2047
    more = ((words >> 11) & 63) - 32, ((words >> 17) & 63) - 32, (words >> 23) - 64
    sizes = np.stack([first, *(first + each for each in more)], axis=1)
    return np.where(words[:, None] < FAR, sizes, 0)


def _packed_nbytes(ids: Any, codes: Any) -> Any:
    """Bytes of low bits and signs of chunks that have a table."""
    lows = tables().lows
    low = lows[np.where(ids < len(lows), ids, 0)]
    return np.where(low > 0, low + 1, 0) * (codes // 8)
