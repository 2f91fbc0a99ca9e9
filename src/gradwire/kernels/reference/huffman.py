"""Prefix codes in plain Python: streams are long integers, short and slow."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.formats.chunks import FAR, find_chunks, word_of_sizes
from gradwire.kernels.formats.huffman import CHUNK, NOTHING, PLAIN, STREAMS, THRESHOLDS, tables
from gradwire.kernels.formats.prefix import LIMIT
from gradwire.kernels.reference.pack import pack_codes, unpack_codes


def huffman_encode(codes: Tensor, out: Tensor, *, zero: int) -> int:
    ids, words, bodies = bytearray(), bytearray(), bytearray()
    for start in range(0, codes.numel(), CHUNK):
        part = codes[start : start + CHUNK].numpy()
        table, word, body = _encode_chunk(part, _signed(part, zero))
        ids.append(table)
        words += word.to_bytes(4, "little")
        bodies += body
    stream = bytes(ids + words + bodies)
    out[: len(stream)] = torch.tensor(list(stream), dtype=torch.uint8)
    return len(stream)


def _signed(codes: Any, zero: int) -> Any:
    return (codes.astype(np.int64) - zero + 128) % 256 - 128


def _encode_chunk(codes: Any, values: Any) -> tuple[int, int, bytes]:
    """The id, the word of sizes and the body."""
    if not values.any():
        return NOTHING, 0, b""
    t = tables()
    counts = [len(values), *(np.count_nonzero(abs(values) >= least) for least in THRESHOLDS)]
    costs = sum(each.astype(np.int64) * count for each, count in zip(t.costs, counts, strict=True))
    table = int(np.argmin(costs))
    low, row = int(t.lows[table]), t.rows[table]
    base, group, words = int(t.bases[row]), int(t.sizes[row]), t.words[row]
    digits, raw = _split(values, low)
    streams = [_Writer() for _ in range(STREAMS)]
    fields = np.clip(digits, 1 - base, base - 1).reshape(group, -1)
    width = 3 if group == 4 else 5
    for j, column in enumerate(fields.T.tolist()):
        index = sum((d & ((1 << width) - 1)) << width * k for k, d in enumerate(column))
        streams[j % STREAMS].put(int(words[index]) >> 8, int(words[index]) & 255)
    for digit in abs(digits[abs(digits) >= base - 1]).tolist():
        streams[-1].put_gamma(digit - base + 2)
    parts = [stream.octets() for stream in streams]
    sizes = [len(part) for part in parts]
    word, body = word_of_sizes(*sizes), _packed(raw, low) + b"".join(parts)
    if word & FAR:
        body += b"".join(size.to_bytes(2, "little") for size in sizes)
    return (PLAIN, 0, codes.tobytes()) if len(body) >= len(codes) else (table, word, body)


def _split(values: Any, low: int) -> tuple[Any, Any]:
    """What has digits, and the bits that are sent as they are: the lowest ones and the sign."""
    if low == 0:
        return values, None
    sign = values < 0
    folded = np.where(sign, ~values, values)
    return folded >> low, (folded & ((1 << low) - 1)) | sign << low


def _packed(raw: Any, low: int) -> bytes:
    if low == 0:
        return b""
    out = torch.empty(len(raw) // 8 * (low + 1), dtype=torch.uint8)
    pack_codes(torch.from_numpy(raw), out, low + 1)
    return out.numpy().tobytes()


class _Writer:
    """Bits, the first one lowest."""

    def __init__(self) -> None:
        self.bits = self.size = 0

    def put(self, word: int, length: int) -> None:
        self.bits |= word << self.size
        self.size += length

    def put_gamma(self, number: int) -> None:
        """As many zeros as there are bits below the highest, a one, and those bits."""
        low = number.bit_length() - 1
        self.put((number - (1 << low)) << low + 1 | 1 << low, 2 * low + 1)

    def octets(self) -> bytes:
        return self.bits.to_bytes(-(-self.size // 8), "little")


class _Reader:
    """Bits of a stream; there are zeros after the last."""

    def __init__(self, octets: bytes) -> None:
        self.bits, self.used, self.nbytes = int.from_bytes(octets, "little"), 0, len(octets)

    def peek(self, length: int) -> int:
        return self.bits >> self.used & ((1 << length) - 1)

    def take(self, length: int) -> int:
        self.used += length
        return self.bits >> (self.used - length) & ((1 << length) - 1)

    def take_gamma(self) -> int | None:
        """None: there are more bits below the highest than any code has."""
        low = next((n for n in range(8) if self.peek(n + 1)), None)
        if low is None:
            return None
        self.take(low + 1)
        return 1 << low | self.take(low)

    @property
    def ended(self) -> bool:
        return -(-self.used // 8) == self.nbytes


def huffman_decode(stream: Tensor, codes: Tensor, *, zero: int) -> bool:
    octets = stream.numpy()
    found = find_chunks(octets, codes.numel())
    if found is None:
        return False
    ids, sizes, starts = found
    for i, table in enumerate(ids.tolist()):
        part, body = codes[i * CHUNK : (i + 1) * CHUNK], octets[starts[i] : starts[i + 1]].tobytes()
        if table == NOTHING:
            part.fill_(zero)
        elif table == PLAIN:
            part.copy_(torch.tensor(list(body), dtype=torch.uint8))
        else:
            values = _decode_chunk(table, body, sizes[i].tolist(), part.numel())
            if values is None:
                return False
            part.copy_(torch.from_numpy(values + zero & 255))
    return True


def _decode_chunk(table: int, body: bytes, sizes: list[int], numel: int) -> Any:
    """The values of a chunk; None if it is damaged."""
    t = tables()
    low, row = int(t.lows[table]), t.rows[table]
    start = numel // 8 * (low + 1) if low else 0
    ends = [start, *(start + sum(sizes[: k + 1]) for k in range(STREAMS))]
    readers = [_Reader(body[a:b]) for a, b in pairwise(ends)]
    values = _read_groups(readers, numel, row, signed=low == 0)
    if values is None or (abs(values) > 127 >> low).any():
        return None
    if not all(reader.ended for reader in readers):
        return None
    if low == 0:
        return values
    packed = torch.tensor(list(body[:start]), dtype=torch.uint8)
    raw = unpack_codes(packed, numel, low + 1).numpy()
    folded = values << low | raw & ((1 << low) - 1)
    return np.where(raw >> low, ~folded, folded)


def _read_groups(readers: list[_Reader], size: int, row: int, *, signed: bool) -> Any:
    """The digits of a chunk with their signs; None: one is far too large."""
    t = tables()
    base, group, groups = int(t.bases[row]), int(t.sizes[row]), t.groups[row].tolist()
    width, digits = 8 // group, np.empty((group, size // group), np.int64)
    signs = np.ones_like(digits)
    for j in range(size // group):
        reader = readers[j % STREAMS]
        entry = groups[reader.peek(LIMIT)]
        reader.take(entry >> 8 & 255)
        for place in range(group):
            digit = entry >> 16 + width * place & ((1 << width) - 1)
            digits[place, j] = digit
            signs[place, j] = -1 if signed and digit and reader.take(1) else 1
    flat = digits.reshape(-1)
    for place in np.flatnonzero(flat == base - 1).tolist():
        number = readers[-1].take_gamma()
        if number is None:
            return None
        flat[place] = base - 2 + number
    return flat * signs.reshape(-1)
