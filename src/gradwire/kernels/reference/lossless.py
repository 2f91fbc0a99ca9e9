"""Floats without loss in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.formats.lossless import (
    CHUNK,
    HEAD,
    KINDS,
    PLAIN,
    PRIORS,
    SAMPLE,
    WIDTH,
    Kind,
    bitmap_nbytes,
    find_chunks,
    gains,
    has_bitmap,
)
from gradwire.kernels.reference.floats import mean_floats
from gradwire.kernels.reference.pack import pack, unpack
from gradwire.key import Key

_INTEGERS = {4: torch.int32, 2: torch.int16}


def pack_floats(x: Tensor, payload: Tensor) -> int:
    kind = KINDS[str(x.dtype).removeprefix("torch.")]
    patterns = x.view(_INTEGERS[kind.nbytes]).long() & (1 << 8 * kind.nbytes) - 1
    chunks = [_chunk(part, kind) for part in torch.split(patterns, CHUNK)] if x.numel() else []
    heads = np.array([head for head, _ in chunks], HEAD).tobytes()
    mark = torch.tensor([kind.mark, 0, 0, 0, *heads], dtype=torch.uint8)
    made = torch.cat([mark, *(body for _, body in chunks)])
    payload[: made.numel()] = made
    return made.numel()


def _chunk(patterns: Tensor, kind: Kind) -> tuple[tuple[Any, ...], Tensor]:
    """Head and body."""
    is_coded = patterns != 0
    bitmap = torch.empty(0, dtype=torch.uint8)
    if not is_coded.any():
        return (0, 0, 0, [0] * 4), bitmap
    if has_bitmap(len(patterns), int((~is_coded).sum()), kind.nbytes):  # bits: integers
        bitmap, patterns = _bitmap(is_coded), patterns[is_coded]
    form, centre, escapes, body = _coded(patterns, kind)
    plain = kind.nbytes * len(patterns)
    if len(body) >= plain:
        form, centre, escapes = PLAIN << 6, 0, [0] * 4
        body = _bytes(patterns, kind.nbytes)
    body = torch.cat((bitmap, body))
    padded = torch.nn.functional.pad(body, (0, -len(body) % 4))
    return (centre, form, len(patterns), escapes), padded


def _coded(patterns: Tensor, kind: Kind) -> tuple[int, int, list[int], Tensor]:
    """Form, centre, escapes, words and codes."""
    sign = patterns >> 8 * kind.nbytes - 1
    words = patterns & (1 << kind.mantissa) - 1 | sign << kind.mantissa
    exponents = patterns >> kind.mantissa & (1 << kind.exponent) - 1
    number, centre = _choose(exponents)
    low = next((bit for bit in range(kind.mantissa) if (words >> bit & 1).any()), kind.mantissa)
    width = kind.mantissa + 1 - low
    escapes, codes = _codes((centre - exponents) % 256, number)
    return number << 6 | width, centre, escapes, torch.cat((_fields(words >> low, width), codes))


def _choose(exponents: Tensor) -> tuple[int, int]:
    """Number of the prior, and centre."""
    sample = exponents[:: max(1, len(exponents) // SAMPLE)][:SAMPLE].numpy()
    centres = np.arange(sample.min(), sample.max() + 1)
    ranks = (centres[:, None] - sample) % 256
    saved = gains()[0][:, ranks].sum(2)  # bits: integers
    prior, place = divmod(int(saved.argmax()), len(centres))
    return prior, int(centres[place])


def _codes(ranks: Tensor, number: int) -> tuple[list[int], Tensor]:
    """How many escape each level, and all codes."""
    prior, escapes, parts = PRIORS[number], [0] * 4, []
    for level in range(prior.levels):
        low, high, above = prior.first(level)
        below, beyond = (ranks - low) % 256, (high - ranks) % 256
        code = torch.where(beyond < above, beyond, prior.top)
        code = torch.where(below < prior.top - above, below + above, code)
        parts.append(_packed(code, prior.width))
        ranks = ranks[code == prior.top]
        escapes[level] = len(ranks)
    return escapes, torch.cat((*parts, ranks.to(torch.uint8)))


def _fields(words: Tensor, width: int) -> Tensor:
    """Low 16 bits, 8 bits, and the rest."""
    parts, shift = [], 0
    for size in (16, 8):
        if width & size:
            parts.append(_bytes(words >> shift & (1 << size) - 1, size // 8))
            shift += size
    return torch.cat((*parts, _packed(words >> shift, width % 8)))


def _bytes(numbers: Tensor, nbytes: int) -> Tensor:
    """Little-endian."""
    return torch.stack([numbers >> 8 * k & 255 for k in range(nbytes)], 1).view(-1).byte()


def _bitmap(bits: Tensor) -> Tensor:
    """One after the other, in whole words of 32 bits."""
    padded = torch.nn.functional.pad(bits.long(), (0, -len(bits) % 32)).view(-1, 8)
    return (padded << torch.arange(8)).sum(1).byte()  # bits: integers


def _packed(codes: Tensor, width: int) -> Tensor:
    """In one tile."""
    if not (len(codes) and width):
        return torch.empty(0, dtype=torch.uint8)
    padded = torch.nn.functional.pad(codes, (0, -len(codes) % 8)).view(1, -1)
    return pack(padded, width)


def unpack_floats(
    payload: Tensor, out: Tensor, *, weight: float = 1.0, accumulate: bool = False
) -> bool:
    found = find_chunks(payload.numpy(), out.numel())
    if found is None:
        return False
    kind, heads, starts = found
    values = torch.empty(out.numel(), dtype=getattr(torch, list(KINDS)[kind.mark]))
    patterns = values.view(_INTEGERS[kind.nbytes])
    for head, start, stop, part in zip(
        heads, starts, starts[1:], torch.split(patterns, CHUNK), strict=False
    ):
        made = _from_chunk(head, payload[start:stop], len(part), kind)
        if made is None:
            return False
        part.copy_(made)
    if out.dtype == values.dtype and weight == 1 and not accumulate:
        out.view(patterns.dtype).copy_(patterns)
        return True
    said = _widened(values) * torch.tensor(weight, dtype=torch.float32)
    out.copy_(out + said if accumulate else said)
    return True


def _widened(values: Tensor) -> Tensor:
    """As float32; the bits of NaN are kept, where conversions would set one."""
    wide = values.float()
    if values.dtype != torch.float16:
        return wide if values.dtype == torch.float32 else _bits_above(values)
    bits = values.view(torch.int16).int()
    nan = (bits & 0x8000) << 16 | 0x7F800000 | (bits & 0x3FF) << 13
    return torch.where(values.isnan(), nan.view(torch.float32), wide)


def _bits_above(values: Tensor) -> Tensor:
    return (values.view(torch.int16).int() << 16).view(torch.float32)


def _from_chunk(head: Any, body: Tensor, numel: int, kind: Kind) -> Tensor | None:
    """The patterns of one chunk."""
    number, form, patterns = int(head["number"]), int(head["form"]), torch.zeros(numel).long()
    if number == 0:
        return patterns
    reader = _Reader(body)
    is_coded = torch.ones(numel, dtype=torch.bool)
    if number < numel:
        bits = reader.take(bitmap_nbytes(numel)).long()
        is_coded = (bits[:, None] >> torch.arange(8) & 1).view(-1).bool()
        if int(is_coded.sum()) != number or is_coded[numel:].any():  # bits: integers
            return None
    if form >> 6 == PLAIN:
        coded: Tensor | None = reader.numbers(number, kind.nbytes)
    else:
        coded = _from_coded(reader, head, kind)
    if coded is not None:
        patterns[is_coded[:numel]] = coded
    return None if coded is None else patterns


def _from_coded(reader: _Reader, head: Any, kind: Kind) -> Tensor | None:
    number, width = int(head["number"]), int(head["form"]) & WIDTH
    words, low = reader.fields(number, width), kind.mantissa + 1 - width
    counts = [number, *map(int, head["escapes"])]
    ranks = _ranks(reader, counts, int(head["form"]) >> 6)
    if ranks is None:
        return None
    exponents = (int(head["centre"]) - ranks) % 256
    if (exponents >> kind.exponent).any():
        return None
    words = words << low
    sign, mantissa = words >> kind.mantissa, words & (1 << kind.mantissa) - 1
    return sign << 8 * kind.nbytes - 1 | exponents << kind.mantissa | mantissa


def _ranks(reader: _Reader, counts: Sequence[int], number: int) -> Tensor | None:
    """From the last level to the first, each filling the places that the one before left open."""
    prior = PRIORS[number]
    levels = [reader.packed(count, prior.width) for count in counts[: prior.levels]]
    ranks = reader.numbers(counts[prior.levels], 1)
    for level in reversed(range(prior.levels)):
        low, high, above = prior.first(level)
        code = levels[level]
        filled = torch.where(code < above, high - code, low + code - above)
        is_open = code == prior.top
        if int(is_open.sum()) != len(ranks):  # bits: integers
            return None
        filled[is_open] = ranks
        ranks = filled
    return ranks


class _Reader:
    """The parts of a body, one after the other."""

    def __init__(self, body: Tensor) -> None:
        self._rest = body

    def take(self, nbytes: int) -> Tensor:
        taken, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return taken

    def numbers(self, count: int, nbytes: int) -> Tensor:
        """Little-endian."""
        octets = self.take(count * nbytes).view(count, nbytes).long()
        return (octets << 8 * torch.arange(nbytes)).sum(1)  # bits: integers

    def packed(self, count: int, width: int) -> Tensor:
        if not (count and width):
            return torch.zeros(count, dtype=torch.int64)
        octets = self.take(width * -(-count // 8))
        return unpack(octets.view(1, -1), width).view(-1)[:count]

    def fields(self, count: int, width: int) -> Tensor:
        """The words."""
        words, shift = torch.zeros(count, dtype=torch.int64), 0
        for size in (16, 8):
            if width & size:
                words |= self.numbers(count, size // 8) << shift
                shift += size
        return words | self.packed(count, width % 8) << shift


def mean_packed_floats(payloads: Sequence[Tensor], out: Tensor) -> bool:
    rows = torch.empty(len(payloads), out.numel())
    if not all(unpack_floats(payload, row) for payload, row in zip(payloads, rows, strict=True)):
        return False
    mean_floats(rows, out, key=Key())
    out[out.isnan()] = torch.nan
    return True
