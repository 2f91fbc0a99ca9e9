"""Codes in fields that the network may add, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.fields import (
    WORD,
    Dither,
    num_words,
    words_per_tile,
    zero_of,
)
from gradwire.kernels.formats.layout import MIN_SCALE
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.scales import block_scales
from gradwire.key import Key


def quantize_fields(
    x: Tensor,
    scales: Tensor,
    words: Tensor,
    *,
    levels: float,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
    shift: int = 0,
) -> None:
    if norm is not None:
        block_scales(x, scales, block=block, norm=norm)
    for start, stop, rows, size in tiles.tiles(x.numel()):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        scale = tiles.scale_of_values(scales, start, rows, size, block)
        dither = (tiles.half_words((offset + start) // 8, rows, size, key) + shift) & 0xFFFF
        code = tiles.stochastic_code(values, scale, dither, levels)
        packed = _pack(code, width)
        at = num_words(start, width)
        words[at : at + packed.numel()] = packed.to(torch.int32)


def dequantize_fields(
    scales: Tensor,
    words: Tensor,
    out: Tensor,
    *,
    levels: float,
    width: int,
    block: int | None,
    terms: int = 1,
    weight: float = 1.0,
    accumulate: bool = False,
    dither: Dither | None = None,
) -> None:
    zero, dither = zero_of(levels, terms, dither)
    for start, stop, rows, size in tiles.tiles(out.numel()):
        at, count = num_words(start, width), rows * words_per_tile(size, width)
        field = _unpack(words[at : at + count].view(rows, -1), width)[:, :size]
        store_levels(
            field - zero, scales, out, start, stop, ratio=weight / levels, block=block,
            accumulate=accumulate, dither=dither,
        )  # fmt: skip


def store_levels(
    level: Tensor,
    scales: Tensor,
    out: Tensor,
    start: int,
    stop: int,
    *,
    ratio: float,
    block: int | None,
    accumulate: bool,
    dither: Dither | None,
) -> None:
    """Write, or add, ratio * scale * level to out[start:stop], for tiles of levels."""
    rows, size = level.shape
    scale = tiles.scale_of_values(scales, start, rows, size, block)
    unit, level = scale * torch.tensor(ratio, dtype=torch.float32), level.float()
    if dither is not None:
        unit = torch.where(scale <= MIN_SCALE, 0.0, unit)
        random = tiles.half_words((dither.offset + start) // 8, rows, size, dither.key)
        drawn = (dither.times * random + dither.shift) & 0xFFFF
        level = level + (dither.centre - 2 * drawn).float() * 2.0**-17
    values = (level * unit).view(-1)[: stop - start]
    out[start:stop] = out[start:stop] + values if accumulate else values


def _pack(code: Tensor, width: int) -> Tensor:
    """Tiles of codes (rows, size) to words, as `formats/fields.py` has it."""
    per_word, (rows, size) = WORD // width, code.shape
    code = torch.nn.functional.pad(code, (0, per_word * words_per_tile(size, width) - size))
    place = width * torch.arange(per_word).view(-1, 1)
    # bits: integers
    return (code.view(rows, per_word, -1) << place).sum(1).view(-1)


def _unpack(words: Tensor, width: int) -> Tensor:
    """The inverse of `_pack`, padding included, for `words` of shape (rows, words of a tile)."""
    place = width * torch.arange(WORD // width).view(-1, 1)
    field = ((words[:, None].to(torch.int64) & 0xFFFFFFFF) >> place) & ((1 << width) - 1)
    return field.view(words.shape[0], -1)
