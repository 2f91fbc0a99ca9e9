"""Prefix codes, after D. Huffman, "A method for the construction of minimum-redundancy codes",
Proceedings of the IRE 40 (1952).

Codes come one a byte, as `quantize` packs them at a width of 8, their number a multiple of 8;
`zero` stands for 0, and they are within 127 of it. `formats/huffman.py` has the tables and
`formats/prefix.py` the words.

A stream is the id of each chunk, a byte; a word of 32 bits with the sizes of its four streams; and
the bodies of all chunks. A body is the low bits and signs of its codes, packed, if its table leaves
them out; then its streams; then their sizes, if the word has no room for them
(`formats/chunks.py`). A chunk of N codes has the groups j, j + N / 4, ... or j, j + N / 2 for
j = 0, 1, ..., which go to the four streams in turn. The last one has after them, for each code of
the chunk that has the largest digit, Elias's gamma code of 1 + how much larger it is. A chunk that
is no smaller then is sent as bytes, one for each code.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Huffman(Protocol):
    """Codes of quantized values in words of groups of them, by fixed tables."""

    def huffman_encode(self, codes: Tensor, out: Tensor, *, zero: int) -> int:
        """Write the stream of `codes`; its size.

        Each chunk has the table that should be cheapest for it. `out` has a byte for each code, and
        `HEAD` more for each chunk.
        """

    def huffman_decode(self, stream: Tensor, codes: Tensor, *, zero: int) -> bool:
        """Fill `codes` from `stream`; False if it is not a whole stream of that many codes.

        What `codes` then holds is undefined.
        """
