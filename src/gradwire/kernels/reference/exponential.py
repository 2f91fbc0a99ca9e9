"""Codes of a sign and an exponent in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.pack import pack, unpack
from gradwire.kernels.reference.scales import block_scales
from gradwire.key import Key


def exp_quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    width: int,
    headroom: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
) -> None:
    if norm is not None:
        block_scales(x, scales, block=block, norm=norm)
    most = (1 << width - 1) - 1
    for start, stop, rows, size in tiles.tiles(x.numel()):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        scale = tiles.scale_of_values(scales, start, rows, size, block)
        dither = tiles.half_words((offset + start) // 8, rows, size, key)
        share = (values.abs() * (1.0 / scale)).clamp_max(1.0) * math.ldexp(1, most - 1 - headroom)
        share = torch.where(scale.isfinite(), share, 0.0)
        power = (share.view(torch.int32).to(torch.int64) + 64 + (dither << 7) >> 23) - 127
        least = ((share.clamp_max(1.0) * 65536.0).round().to(torch.int64) + dither) >> 16
        code = torch.where(share >= 1, most - power, most * least)
        sign = (values.view(torch.int32) < 0) & (code > 0)
        packed = pack(code + (sign.to(torch.int64) << width - 1), width)
        at = packed_nbytes(start, width)
        codes[at : at + packed.numel()] = packed


def exp_dequantize(
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    width: int,
    headroom: int,
    block: int | None,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    ratio = torch.tensor(weight, dtype=torch.float32)
    most = (1 << width - 1) - 1
    for start, stop, rows, size in tiles.tiles(out.numel()):
        packed = codes[packed_nbytes(start, width) :][: packed_nbytes(rows * size, width)]
        code = unpack(packed.view(rows, -1), width)
        power = (128 + headroom - (code & most)) << 23
        level = torch.where((code & most) > 0, power.to(torch.int32).view(torch.float32), 0.0)
        level = torch.where((code & most > 0) & (code > most), -level, level)
        values = level * (tiles.scale_of_values(scales, start, rows, size, block) * ratio)
        values = values.view(-1)[: stop - start]
        out[start:stop] = out[start:stop] + values if accumulate else values


def exp_reduce(into: Tensor, term: Tensor, *, width: int, key: Key, offset: int = 0) -> None:
    most = (1 << width - 1) - 1
    for start, _, rows, size in tiles.tiles(8 * into.numel() // width):
        at, count = packed_nbytes(start, width), packed_nbytes(rows * size, width)
        a, b = (unpack(codes[at : at + count].view(rows, -1), width) for codes in (into, term))
        dither = tiles.half_words((offset + start) // 8, rows, size, key)
        larger = torch.where((a & most) <= (b & most), a, b)
        apart = ((a & most) - (b & most)).abs()
        alike = (a > most) == (b > most)
        rare = apart - torch.where(alike, 0, 1)
        move = (rare <= 16) & ((dither << rare.clamp(0, 16)) < 65536)
        total = larger + torch.where(move, torch.where(alike, -1, 1), 0)
        total = torch.where(~alike & (apart == 0), 0, total)
        total = torch.where((a & most) == 0, b, torch.where((b & most) == 0, a, total))
        into[at : at + count] = pack(total, width)
