"""Bitmaps in Triton, as `protocol/sparse.py` has them, and how many of their bits come before."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from gradwire.kernels.gpu.compiler import jit, kernel, launch

SPAN = tl.constexpr(2048)
"""The values of a program that asks how many bits come before its own."""


@jit
def load_bits(bitmap, first, stop, rows: tl.constexpr, size: tl.constexpr):
    """Rows of bits (int32), those of the values from `first` on; zeros from byte `stop` on."""
    at = first // 8 + tl.arange(0, rows)[:, None] * (size // 8) + tl.arange(0, size // 8)[None, :]
    octets = tl.load(bitmap + at, mask=at < stop, other=0).to(tl.int32)
    return tl.reshape((octets[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1, (rows, size))


@jit
def store_bitmap(bitmap, kept, first, stop):
    """Write the bits of values from `first` on, up to byte `stop`."""
    count: tl.constexpr = kept.shape[0] * kept.shape[1] // 8
    bits = tl.reshape(kept, (count, 8)).to(tl.int32) << tl.arange(0, 8)[None, :]
    octets = tl.sum(bits, 1).to(tl.uint8)  # bits: integers
    at = first // 8 + tl.arange(0, count)
    tl.store(bitmap + at, octets, mask=at < stop)


@kernel
def _count_bits(bitmap, counts, stop):
    first = tl.program_id(0).to(tl.int64) * SPAN
    bits = load_bits(bitmap, first, stop, 1, SPAN)
    tl.store(counts + tl.program_id(0), tl.sum(bits).to(tl.int64))  # bits: integers


def bits_up_to(bitmap: Tensor) -> Tensor:
    """How many bits are set up to the end of each span (int64)."""
    spans = -(-8 * bitmap.numel() // SPAN.value)
    counts = bitmap.new_zeros(spans, dtype=torch.int64)
    launch(_count_bits, spans, bitmap, counts, bitmap.numel())
    return counts.cumsum(0)  # bits: integers
