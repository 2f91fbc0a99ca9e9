"""Calls of Huffman's code."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.kernels import cpu
from gradwire.kernels.formats.huffman import CHUNK, HEAD
from gradwire.lab.selftest.kernel_calls.table import Call, call, float32_only
from gradwire.lab.selftest.kernel_calls.values import random, soiled


def bytes_of_steps(numel: int) -> Iterator[Tensor]:
    """Codes of values of a step: few of them large, many, and a chunk of zeros among others."""
    padded = -(-numel // 8) * 8
    values = (
        torch.randn(padded, generator=random(2)) * torch.rand(padded, generator=random(3)) ** -0.5
    )
    for scale in (0.0, 0.02, 0.3, 0.8, 2.0, 6.0, 20.0, 60.0):
        levels = (scale * values).round().clamp(-127, 127)
        levels[100:101], levels[4096:] = 127 * (scale > 1), levels[4096:] * (scale != 0.3)
        yield (levels + 127).to(torch.uint8)
    levels[1::4] = 0  # so that streams differ in size
    levels[2::4] = 0
    yield (levels + 127).to(torch.uint8)
    yield torch.randint(126, 129, (padded,), generator=random(4), dtype=torch.uint8)
    yield torch.randint(0, 255, (padded,), generator=random(5), dtype=torch.uint8)


@float32_only
def huffman_encode(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for codes in bytes_of_steps(numel):
        room = soiled(codes.numel() + HEAD * -(-codes.numel() // CHUNK), dtype=torch.uint8)
        yield call(codes, room, zero=127)
        yield call(codes - 119, room, zero=8)


@float32_only
def huffman_decode(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for codes in bytes_of_steps(numel):
        stream = torch.empty(codes.numel() + HEAD * -(-codes.numel() // CHUNK), dtype=torch.uint8)
        stream = stream[: cpu.huffman_encode(codes, stream, zero=127)]
        room = soiled(codes.numel(), dtype=torch.uint8)
        yield call(stream, room, zero=127)
        for at in range(0, stream.numel() if numel < 20_000 else 0, 1 + stream.numel() // 6):
            damaged = stream.clone()
            damaged[at] ^= 1 << at % 8
            yield call(damaged, room, zero=127)
        yield call(stream[:-1], room, zero=127)
