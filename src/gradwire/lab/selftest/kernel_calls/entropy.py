"""Calls of the dithered quantizer with Huffman's code."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradwire.kernels import cpu
from gradwire.kernels.formats.huffman import CHUNK, HEAD
from gradwire.kernels.formats.layout import num_blocks, packed_nbytes
from gradwire.lab.selftest.kernel_calls.table import Call, call, every_float, float32_only
from gradwire.lab.selftest.kernel_calls.values import (
    BLOCKS,
    KEY,
    STORES,
    ratios_for,
    soiled,
    vectors,
)


@every_float
def count_ratios(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x, block in itertools.product(vectors(numel, dtype), BLOCKS):
        segment = max(block, 1024) if block else None
        counts = torch.zeros(num_blocks(numel, segment), 8, 96, dtype=torch.int32)
        yield call(x, counts, counts[:, :, 0].clone(), segment=segment, block=block)


def payload_room(numel: int, block: int | None) -> Tensor:
    chunks = HEAD * num_blocks(numel, CHUNK)
    return soiled(
        4 * num_blocks(numel, block) + packed_nbytes(numel, 8) + chunks, dtype=torch.uint8
    )


@every_float
def encode_dithered(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x, block in itertools.product(vectors(numel, dtype), [*BLOCKS, 1536]):
        (ratios, segment), room = ratios_for(numel, block), payload_room(numel, block)
        yield call(x, ratios, room, segment=segment, block=block, key=KEY, offset=1024)


@float32_only
def decode_dithered(numel: int, dtype: torch.dtype) -> Iterator[Call]:
    for x, block, store in itertools.product(vectors(numel, dtype), [*BLOCKS, 1536], STORES):
        (ratios, segment), room = ratios_for(numel, block), payload_room(numel, block)
        how: dict[str, Any] = {"block": block, "key": KEY, "offset": 1024}
        payload = room[: cpu.encode_dithered(x, ratios, room, segment=segment, **how)]
        yield call(payload, soiled(numel), **how, **store)
