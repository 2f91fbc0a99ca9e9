"""Random bits in plain torch. 32-bit words live in int64 tensors: torch lacks most of uint32."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.key import Key

_MASK = 0xFFFFFFFF


def philox(counter: Tensor, key: Key) -> Tensor:
    c1, c2, c3, k0, k1 = key.words()
    c = [counter & _MASK, *(torch.full_like(counter, word) for word in (c1, c2, c3))]
    for _ in range(7):
        high0, low0 = _mulhilo(0xD2511F53, c[0])
        high1, low1 = _mulhilo(0xCD9E8D57, c[2])
        c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return torch.stack(c)


def _mulhilo(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 x 32 bit product, by halves so that int64 does not overflow."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, (high << 16 | low & 0xFFFF) & _MASK
