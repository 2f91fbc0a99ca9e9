"""Random bits in Triton."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from gradwire.kernels.gpu.compiler import jit, kernel, launch, stream
from gradwire.key import Key

_LANES = tl.constexpr(512)


@jit
def philox_words(c0, c1, c2, c3, k0, k1):
    """Philox-4x32-7 of counters `c0` (uint32)."""
    c1, c2, c3 = c1.to(tl.uint32), c2.to(tl.uint32), c3.to(tl.uint32)
    k0, k1 = k0.to(tl.uint32), k1.to(tl.uint32)
    for _ in tl.static_range(7):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1 = high1 ^ c1 ^ k0, low1
        c2, c3 = high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@kernel
def _philox(counters, out, numel, counter, c1, c2, c3, k0, k1):
    at = tl.program_id(0).to(tl.int64) * _LANES + tl.arange(0, _LANES)
    inside = at < numel
    count = tl.load(counters + at, mask=inside, other=0).to(tl.uint32) + counter.to(tl.uint32)
    words = philox_words(count, c1, c2, c3, k0, k1)
    for plane in tl.static_range(4):
        word = tl.broadcast_to(words[plane], (_LANES,))
        tl.store(out + plane * numel + at, word.to(tl.int64), mask=inside)


def philox(counter: Tensor, key: Key) -> Tensor:
    flat = counter.to(torch.int64).reshape(-1)
    out = torch.empty((4, *counter.shape), dtype=torch.int64, device=counter.device)
    programs = -(-flat.numel() // _LANES.value)
    launch(_philox, programs, flat, out, flat.numel(), **stream(key))
    return out
