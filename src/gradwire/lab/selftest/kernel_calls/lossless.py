"""Calls of floats without loss."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.kernels import cpu
from gradwire.kernels.formats.lossless import CHUNK as LOSSLESS_CHUNK
from gradwire.kernels.formats.lossless import max_nbytes as lossless_nbytes
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float
from gradwire.lab.selftest.kernel_calls.values import LENGTHS, random, soiled, vectors


def any_floats(numel: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Of a law, with many zeros, of few bits, of any bits at all, and none that is not zero."""
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    top = torch.iinfo(integer).max
    for size in (numel, 2 * LOSSLESS_CHUNK + 77) if numel == LENGTHS[-1] else (numel,):
        x = torch.randn(size, generator=random(size))
        yield from vectors(size, dtype)
        yield x.to(dtype)
        yield torch.where(x > 0, x, 0.0).to(dtype)
        yield x.to(torch.bfloat16).to(dtype)
        patterns = torch.randint(-top - 1, top + 1, (size,), generator=random(size))
        yield patterns.to(integer).view(dtype)
        yield torch.zeros(size, dtype=dtype)


def packed_floats(x: Tensor) -> Tensor:
    room = torch.zeros(lossless_nbytes(x.numel()), dtype=torch.uint8)
    return room[: cpu.pack_floats(x, room)]


@every_float
def pack_floats(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x in any_floats(numel, dtype):
        yield call(x, soiled(lossless_nbytes(x.numel()), dtype=torch.uint8))


@every_float
def unpack_floats(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x in any_floats(numel, dtype):
        payload, size = packed_floats(x), x.numel()
        yield call(payload, soiled(size, dtype=dtype))
        yield call(payload, soiled(size))
        yield call(payload, soiled(size), weight=-0.3, accumulate=True)
        yield call(payload[:-1], soiled(size))
    for at in range(0, payload.numel() if numel else 0, 7):
        damaged = packed_floats(torch.randn(numel, generator=random(at)).to(dtype))
        damaged[at] ^= 1 << at % 8
        yield call(damaged, soiled(numel))


@every_float
def mean_packed_floats(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x in any_floats(numel, dtype):
        others = torch.randn(2, x.numel(), generator=random(1)).to(dtype)
        payloads = [packed_floats(each) for each in (x, *others)]
        for count in (1, 3):
            yield call(payloads[:count], soiled(x.numel()))
