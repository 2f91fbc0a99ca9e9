"""Packing of codes in plain torch, as `formats/layout.py` has it."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.layout import digits, packed_nbytes
from gradwire.kernels.reference.tiles import tiles


def pack(code: Tensor, width: int) -> Tensor:
    """Tiles of codes (rows, size) to bytes."""
    packed = []
    for bits, shift in digits(width):
        part = ((code >> shift) & ((1 << bits) - 1)).view(code.shape[0], 8 // bits, -1)
        place = bits * torch.arange(8 // bits).view(-1, 1)
        packed.append((part << place).sum(1))  # bits: integers
    return torch.cat(packed, 1).view(-1).to(torch.uint8)


def unpack(packed: Tensor, width: int) -> Tensor:
    """The inverse of `pack`, for `packed` of shape (rows, bytes of a tile)."""
    code = torch.zeros((), dtype=torch.int64)
    stride, start = packed.shape[1] // width, 0
    for bits, shift in digits(width):
        octets = packed[:, None, start : start + stride * bits].to(torch.int64)
        place = bits * torch.arange(8 // bits).view(-1, 1)
        part = (octets >> place) & ((1 << bits) - 1)
        code = code + (part.view(packed.shape[0], -1) << shift)
        start += stride * bits
    return code


def pack_codes(codes: Tensor, out: Tensor, width: int) -> None:
    """Write a flat vector of codes to `out`, tile by tile; a width of 0 takes no bytes."""
    if width == 0:
        return
    for start, stop, rows, size in tiles(codes.numel()):
        padded = torch.nn.functional.pad(codes[start:stop], (0, rows * size - (stop - start)))
        packed = pack(padded.view(rows, size), width)
        out[packed_nbytes(start, width) :][: packed.numel()] = packed


def unpack_codes(packed: Tensor, numel: int, width: int) -> Tensor:
    """The inverse of `pack_codes` (int64)."""
    codes = torch.zeros(numel, dtype=torch.int64)
    if width == 0:
        return codes
    for start, stop, rows, size in tiles(numel):
        part = packed[packed_nbytes(start, width) :][: packed_nbytes(rows * size, width)]
        codes[start:stop] = unpack(part.view(rows, -1), width).view(-1)[: stop - start]
    return codes
