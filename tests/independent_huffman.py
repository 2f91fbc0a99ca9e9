"""Huffman codes, decoded from docs/wire.md and nothing else: no line of gradwire is here."""

import heapq
import itertools
import math
from functools import cache

import numpy as np


class RefusedError(Exception):
    """The bytes are no message."""


def require(condition):
    if not condition:
        raise RefusedError


# The tables


def laws():
    x = (np.arange(512) + 0.5) / 32
    return {
        "gaussian": [math.exp(-each * each / 2) for each in x],
        "laplace": [math.exp(-math.sqrt(2) * each) for each in x],
        "student": [1 / (1 + each * each) ** 2 for each in x],
    }


LAWS = {name: [round(f * 2**30) for f in fs] for name, fs in laws().items()}
SIGNED = [(law, i / 4) for law in LAWS for i in range(-8, 13)]
FINE = [(law, i / 4) for law in LAWS for i in range(-8, -2)]


FLAT = [[256, 512, 1], [256, 512, 512], [256, 512, 512, 512]]


def table_of(number):
    """(low, weights of digits, are there signs?) of an id."""
    if number < 63:
        return 0, weights(*SIGNED[number], 0), True
    if number < 66:
        return 0, FLAT[number - 63], True
    require(number < 156)
    low, row = divmod(number - 66, 18)
    return low + 1, weights(*FINE[row], 0.5), False


def weights(law, octave, shift):
    step = 2.0**octave
    base = next(b for s, b in ((1.6, 3), (0.8, 4), (0.55, 6), (0.35, 8), (0, 12)) if step >= s)
    reach = [256 * sum(LAWS[law])]
    for t in range(1, base):
        chances = [min(max((i + 0.5) / 32 / step - (t + shift) + 1, 0), 1) for i in range(512)]
        reach.append(
            sum(f * int(256 * chance) for f, chance in zip(LAWS[law], chances, strict=True))
        )
    return [1 + (a - b) * 2**14 // reach[0] for a, b in itertools.pairwise([*reach, 0])]


@cache
def code_of(number):
    """(low, base, size of groups, their digits by word, are there signs?); words are strings."""
    low, weight, signed = table_of(number)
    base = len(weight)
    group = 4 if base <= 4 else 2
    groups = [digits[::-1] for digits in itertools.product(range(base), repeat=group)]
    lengths = limited_lengths([math.prod(weight[d] for d in digits) for digits in groups])
    words, word, last = {}, 0, 0
    for length, i in sorted((length, i) for i, length in enumerate(lengths)):
        word <<= length - last
        words[f"{word:0{length}b}"] = groups[i]
        word, last = word + 1, length
    return low, base, group, words, signed


def limited_lengths(weight):
    """By package-merge, with the members of every package written down."""
    singles = sorted(((w, 0, i), (i,)) for i, w in enumerate(weight))
    items = singles
    for _ in range(11):
        packages = [
            ((a[0][0] + b[0][0], 1, k), a[1] + b[1])
            for k, (a, b) in enumerate(zip(items[::2], items[1::2], strict=False))
        ]
        items = list(heapq.merge(singles, packages))
    lengths = [0] * len(weight)
    for _, members in items[: 2 * len(weight) - 2]:
        for i in members:
            lengths[i] += 1
    return lengths


# The streams


class Bits:
    """Bits, the lowest of the first byte first."""

    def __init__(self, octets):
        self.text = "".join(f"{octet:08b}"[::-1] for octet in octets)
        self.at = 0

    def take(self, count):
        require(self.at + count <= len(self.text))
        self.at += count
        return self.text[self.at - count : self.at]

    def take_word(self, words):
        for length in range(1, 13):
            if self.text[self.at : self.at + length] in words:
                return words[self.take(length)]
        raise RefusedError

    def take_gamma(self):
        zeros = 0
        while self.take(1) == "0":
            zeros += 1
            require(zeros < 8)
        return int(("1" + self.take(zeros)[::-1]), 2)


def read_huffman(stream, numel, zero):
    """The codes of `numel` values, a multiple of 8."""
    count = -(-numel // 4096)
    require(len(stream) >= 5 * count)
    words = np.frombuffer(stream[count : 5 * count], "<u4").tolist()
    values, at = [], 5 * count
    for i, number in enumerate(stream[:count]):
        total = min(4096, numel - 4096 * i)
        require(number < 254 or words[i] == 0)
        if number == 255:
            values += [0] * total
        elif number == 254:
            require(at + total <= len(stream))
            values += [octet - zero for octet in stream[at : at + total]]
            at += total
        else:
            low = code_of(number)[0]
            start = at + (low + 1) * total // 8 * (low > 0)
            sizes, end = read_sizes(words[i], stream, start)
            require(end <= len(stream) and end - at < total)
            values += read_chunk(number, stream[at : start + sum(sizes)], sizes, total)
            at = end
    require(at == len(stream))
    return (np.array(values, np.int64) + zero) % 256


def read_sizes(word, stream, start):
    """Of the four streams, the first of which starts there; where the body ends."""
    if word >= 2**31:
        end = start + word - 2**31 + 8
        require(end <= len(stream))
        sizes = np.frombuffer(stream[end - 8 : end], "<u2").tolist()
        require(sum(sizes) == word - 2**31)
        return sizes, end
    first, second, third, last = word % 2**11, word >> 11 & 63, word >> 17 & 63, word >> 23
    sizes = [first, first + second - 32, first + third - 32, first + last - 64]
    require(min(sizes) >= 0)
    return sizes, start + sum(sizes)


def read_chunk(number, body, sizes, total):
    """The values of one chunk."""
    low, base, group, words, signed = code_of(number)
    start = len(body) - sum(sizes)
    ends = [start + sum(sizes[:k]) for k in range(5)]
    streams = [Bits(body[a:b]) for a, b in itertools.pairwise(ends)]
    digits, signs = np.zeros((group, total // group), np.int64), np.ones((group, total // group))
    for j in range(total // group):
        bits = streams[j % 4]
        digits[:, j] = bits.take_word(words)
        for place in np.flatnonzero(digits[:, j]) if signed else ():
            signs[place, j] = -1 if bits.take(1) == "1" else 1
    digits, signs = digits.reshape(-1), signs.reshape(-1).astype(np.int64)
    for place in np.flatnonzero(digits == base - 1):
        digits[place] += streams[3].take_gamma() - 1
    require((digits <= 127 >> low).all())
    values = (digits * signs).tolist()
    for bits in streams:
        require(-(-bits.at // 8) * 8 == len(bits.text))
    return with_low_bits(values, body[:start], low) if low else values


def with_low_bits(digits, packed, low):
    """Low bits and signs are packed like codes of low + 1 bits."""
    raw = unpack(packed, len(digits), low + 1)
    folded = (np.array(digits) << low) | (raw & (1 << low) - 1)
    return np.where(raw >> low, -1 - folded, folded).tolist()


# Packed codes


def tiles(numel):
    """First value and size of each tile."""
    for first in range(0, numel, 512):
        yield first, min(512, -(-(numel - first) // 8) * 8)


def unpack(packed, numel, bits, cuts=None):
    """The codes of `numel` values, in tiles unless `cuts` says how they are cut."""
    codes = np.zeros(-(-numel // 8) * 8, np.int64)
    octets, start = np.frombuffer(packed, np.uint8).astype(np.int64), 0
    for first, size in cuts or tiles(numel):
        shift = 0
        for width in [8] * (bits // 8) + [w for w in (4, 2, 1) if bits & w]:
            stride = size * width // 8
            part = octets[start : start + stride]
            fields = [part >> place & (1 << width) - 1 for place in range(0, 8, width)]
            codes[first : first + size] |= np.concatenate(fields) << shift
            start, shift = start + stride, shift + width
    return codes[:numel]
