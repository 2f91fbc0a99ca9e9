"""Prefix codes of groups of digits, for all backends.

A *group* is 4 digits below 3 or 4, or 2 digits below 6, 8 or 12, so there are 256 groups at most.
They get the shortest prefix code whose words have up to 12 bits, by package-merge (L. Larmore,
D. Hirschberg, "A fast algorithm for optimal length-limited Huffman codes", JACM 37, 1990), with
integer weights; words are then canonical, numbered by length and by group. In a *signed* code, the
word of a group is followed by a bit for each digit that is not zero, 1 for negative.

Bits of a stream are numbered from the lowest of the first byte on, and the first bit of a word
comes first.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

LIMIT = 12
"""Bits of the longest word."""
FINENESS = 256
"""Costs are in such parts of a bit."""


class Prefix(NamedTuple):
    """A code of groups of `size` digits below `base`, as the inner loops want it.

    words: by the fields of a group, 3 bits for each of 4 digits or 5 bits for each of 2, negative
        ones in two's complement: bits of the word and its signs, then the word and its signs.
    groups: by the next 12 bits of a stream: bits of the word and its signs; from bit 8 on those of
        the word; from bit 16 on the digits, 8 // size bits each.
    costs: of each digit: its share of a word, without sign, in parts of a bit.
    """

    base: int
    size: int
    words: Any
    groups: Any
    costs: list[int]


def prefix_code(weights: list[int], size: int, *, signed: bool) -> Prefix:
    """The code for groups of `size` independent digits with these weights."""
    base = len(weights)
    digits = np.array(list(product(range(base), repeat=size)))[:, ::-1]  # the first one is lowest
    weight = np.ones(len(digits), np.int64)
    for place in range(size):
        weight = weight * np.array(weights, np.int64)[digits[:, place]]
    lengths = word_lengths(weight)
    words = canonical_words(lengths)
    costs = _costs(weights, weight, lengths, size)
    groups = _groups(digits, lengths, words, 8 // size, signed=signed)
    return Prefix(base, size, _fields(digits, lengths, words, signed=signed), groups, costs)


def word_lengths(weights: Any) -> Any:
    """Bits of each word of the best code of up to `LIMIT` bits, by package-merge.

    Among equal weights, single words come before packages, and earlier before later ones.

    >>> word_lengths(np.array([1, 1, 2, 4])).tolist()
    [3, 3, 2, 1]
    """
    number, order = len(weights), np.argsort(weights, kind="stable")
    rising = items = weights[order]
    single = np.ones(number, bool)
    levels = [single]
    for _ in range(LIMIT - 1):
        pairs = len(items) // 2
        merged = np.concatenate((rising, items[: 2 * pairs : 2] + items[1 : 2 * pairs : 2]))
        by_weight = np.argsort(merged, kind="stable")
        items, single = merged[by_weight], by_weight < number
        levels.append(single)
    lengths, taken = np.zeros(number, np.int64), 2 * number - 2
    for single in reversed(levels):
        singles = int(np.count_nonzero(single[:taken]))
        lengths[order[:singles]] += 1
        taken = 2 * (taken - singles)
    return lengths


def canonical_words(lengths: Any) -> Any:
    """Words numbered by length and place, with the first bit lowest.

    >>> [f"{word:03b}" for word in canonical_words(np.array([3, 3, 2, 1]))]
    ['011', '111', '001', '000']
    """
    words, word, last = np.zeros(len(lengths), np.int64), 0, 0
    for at in np.argsort(lengths, kind="stable").tolist():
        word <<= int(lengths[at]) - last
        last = int(lengths[at])
        words[at] = int(f"{word:0{last}b}"[::-1], 2)
        word += 1
    return words


def _costs(weights: list[int], weight: Any, lengths: Any, size: int) -> list[int]:
    """The bits that each digit is worth, and its share of what words take beyond that."""
    total = sum(weights)
    worth = [_parts_of_log2(total) - _parts_of_log2(each) for each in weights]
    ideal = sum(each * bits for each, bits in zip(weights, worth, strict=True)) // total
    taken = sum(w * n for w, n in zip(weight.tolist(), lengths.tolist(), strict=True))
    mean = FINENESS * taken // sum(weight.tolist())
    return [bits + mean // size - ideal for bits in worth]


def _parts_of_log2(number: int) -> int:
    """log2 in parts of a bit, rounded down, by integers alone.

    >>> _parts_of_log2(1), _parts_of_log2(3), _parts_of_log2(1 << 20)
    (0, 405, 5120)
    """
    return int(number**FINENESS).bit_length() - 1  # bits: integers


def _fields(digits: Any, lengths: Any, words: Any, *, signed: bool) -> Any:
    """`Prefix.words`."""
    size = digits.shape[1]
    width = 3 if size == 4 else 5
    table = np.zeros(1 << 12, np.uint32)
    for signs in product((0, 1), repeat=size) if signed else [(0,) * size]:
        index, bits, total = np.zeros_like(lengths), words.copy(), lengths.copy()
        for place, sign in enumerate(signs):
            digit = digits[:, place]
            bits |= (sign << total) * (digit > 0)
            total = total + (digit > 0) * signed
            index |= ((-digit if sign else digit) & ((1 << width) - 1)) << width * place
        table[index] = total | bits << 8
    return table


def _groups(digits: Any, lengths: Any, words: Any, width: int, *, signed: bool) -> Any:
    """`Prefix.groups`: a word stands wherever its bits are the first ones."""
    nonzero = np.count_nonzero(digits, axis=1) * signed
    packed = np.zeros_like(lengths)
    for place in range(digits.shape[1]):
        packed |= digits[:, place] << width * place
    entry = (lengths + nonzero) | lengths << 8 | packed << 16
    table = np.zeros(1 << LIMIT, np.uint32)
    for each, length, word in zip(entry.tolist(), lengths.tolist(), words.tolist(), strict=True):
        table[word :: 1 << length] = each
    return table
