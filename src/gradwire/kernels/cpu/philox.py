"""Random bits in Numba."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.cpu.calls import key_words
from gradwire.kernels.cpu.compiler import inline, jit
from gradwire.kernels.cpu.intrinsics import add16, add32, mul32, mulhi32, xor32
from gradwire.key import Key


@inline
def _philox_words(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    for _ in range(7):
        high0, low0 = mulhi32(np.uint32(0xD2511F53), c0), mul32(np.uint32(0xD2511F53), c0)
        high1, low1 = mulhi32(np.uint32(0xCD9E8D57), c2), mul32(np.uint32(0xCD9E8D57), c2)
        c0, c1 = xor32(xor32(high1, c1), k0), low1
        c2, c3 = xor32(xor32(high0, c3), k1), low0
        k0, k1 = add32(k0, np.uint32(0x9E3779B9)), add32(k1, np.uint32(0xBB67AE85))
    return c0, c1, c2, c3


@jit
def random_tile(words, size, base, key):  # type: ignore[no-untyped-def]
    """Four planes of Philox words for a tile; `words` as 16-bit halves has one for each value."""
    stride = size // 8
    c1, c2, c3, k0, k1 = key
    for j in range(stride):
        a, b, c, d = _philox_words(add32(base, np.uint32(j)), c1, c2, c3, k0, k1)
        words[j] = a
        words[stride + j] = b
        words[2 * stride + j] = c
        words[3 * stride + j] = d


@jit
def add_shift(dither, shift):  # type: ignore[no-untyped-def]
    """Add `shift` to 16-bit words, which wrap."""
    shift = np.uint16(shift)
    for i in range(len(dither)):
        dither[i] = add16(dither[i], shift)


@jit
def _philox_table(counter, out, key):  # type: ignore[no-untyped-def]
    c1, c2, c3, k0, k1 = key
    for j in range(len(counter)):
        a, b, c, d = _philox_words(np.uint32(counter[j]), c1, c2, c3, k0, k1)
        out[0, j], out[1, j], out[2, j], out[3, j] = a, b, c, d


def philox(counter: Tensor, key: Key) -> Tensor:
    out = np.empty((4, counter.numel()), np.uint32)
    _philox_table(counter.to(torch.int64).numpy().reshape(-1), out, key_words(key))
    return torch.from_numpy(out.astype(np.int64)).view(4, *counter.shape)
