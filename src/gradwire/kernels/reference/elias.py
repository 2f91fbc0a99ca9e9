"""Elias's recursive code in plain Python: strings of bits, short and slow."""

from __future__ import annotations

import torch
from torch import Tensor


def elias_sizes(codes: Tensor, *, levels: int) -> tuple[int, int, int]:
    sparse, dense = _sparse_bits(codes, levels), _dense_bits(codes, levels)
    return int((codes != levels).count_nonzero()), len(sparse), len(dense)


def elias_encode(codes: Tensor, out: Tensor, *, levels: int, sparse: bool) -> None:
    bits = _sparse_bits(codes, levels) if sparse else _dense_bits(codes, levels)
    bits += "0" * (-len(bits) % 8)
    octets = [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]
    out.copy_(torch.tensor(octets, dtype=torch.uint8))


def elias_decode(
    stream: Tensor, codes: Tensor, *, levels: int, sparse: bool, nonzeros: int
) -> bool:
    bits = "".join(f"{octet:08b}" for octet in stream.tolist())
    codes.fill_(levels)
    at = 0
    position = -1
    try:
        for index in range(nonzeros if sparse else codes.numel()):
            if sparse:
                gap, at = _omega_decode(bits, at)
                position += gap
                negative, at = bits[at] == "1", at + 1
                magnitude, at = _omega_decode(bits, at)
            else:
                position = index
                magnitude, at = _omega_decode(bits, at)
                magnitude -= 1
                negative = False
                if magnitude:
                    negative, at = bits[at] == "1", at + 1
            if magnitude > levels or position >= codes.numel():
                return False
            codes[position] = levels - magnitude if negative else levels + magnitude
    except IndexError:
        return False
    return len(bits) - at < 8 and "1" not in bits[at:]


def omega(k: int) -> str:
    """Elias's recursive code of k >= 1.

    >>> omega(1), omega(2), omega(8), omega(17)
    ('0', '100', '1110000', '10100100010')
    """
    code = "0"
    while k > 1:
        group = f"{k:b}"
        code = group + code
        k = len(group) - 1
    return code


def _omega_decode(bits: str, at: int) -> tuple[int, int]:
    """The number that starts at bit `at`, and where the next one starts; IndexError if cut off."""
    value = 1
    while bits[at] == "1":
        end = at + 1 + value
        if end >= len(bits):
            raise IndexError
        value, at = int(bits[at:end], 2), end
    return value, at + 1


def _signed(codes: Tensor, levels: int) -> list[int]:
    return [code - levels for code in codes.tolist()]


def _sparse_bits(codes: Tensor, levels: int) -> str:
    """Gap, sign and magnitude of every nonzero."""
    parts, last = [], -1
    for position, level in enumerate(_signed(codes, levels)):
        if level:
            parts.append(omega(position - last) + "01"[level < 0] + omega(abs(level)))
            last = position
    return "".join(parts)


def _dense_bits(codes: Tensor, levels: int) -> str:
    """Magnitude + 1 of every value, and the sign of every nonzero."""
    return "".join(
        omega(abs(level) + 1) + ("" if not level else "01"[level < 0])
        for level in _signed(codes, levels)
    )
