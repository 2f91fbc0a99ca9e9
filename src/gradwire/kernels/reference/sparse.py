"""The coding of where values are, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.reference.pack import pack_codes, unpack_codes


def gap_sizes(bitmap: Tensor) -> list[int]:
    gaps = _gaps(read_bits(bitmap))
    # bits: integers
    return [int((gaps >> rice).sum()) + gaps.numel() for rice in range(16)]


def gap_encode(bitmap: Tensor, low: Tensor, unary: Tensor, *, rice: int) -> None:
    gaps = _gaps(read_bits(bitmap))
    pack_codes(gaps & ((1 << rice) - 1), low, rice)
    bits = torch.zeros(8 * unary.numel(), dtype=torch.bool)
    bits[((gaps >> rice) + 1).cumsum(0) - 1] = True  # bits: integers
    write_bits(bits, unary)


def gap_decode(
    low: Tensor, unary: Tensor, bitmap: Tensor, *, rice: int, count: int, numel: int
) -> bool:
    high = _gaps(read_bits(unary))
    ends = read_bits(unary)[-64:].any() if unary.numel() else True
    if high.numel() != count or not ends:
        return False
    gaps = (high << rice) + unpack_codes(low, count, rice)
    places = (gaps + 1).cumsum(0) - 1  # bits: integers
    if count and int(places[-1]) >= numel:
        return False
    bits = torch.zeros(8 * bitmap.numel(), dtype=torch.bool)
    bits[places] = True
    write_bits(bits, bitmap)
    return True


def _gaps(bits: Tensor) -> Tensor:
    places = bits.nonzero()[:, 0]
    return places.diff(prepend=places.new_tensor([-1])) - 1


def read_bits(bitmap: Tensor) -> Tensor:
    return ((bitmap[:, None] >> torch.arange(8)) & 1).view(-1).bool()


def write_bits(bits: Tensor, bitmap: Tensor) -> None:
    padded = torch.nn.functional.pad(bits, (0, 8 * bitmap.numel() - bits.numel())).view(-1, 8)
    # bits: integers
    bitmap.copy_((padded.to(torch.int64) << torch.arange(8)).sum(1))
