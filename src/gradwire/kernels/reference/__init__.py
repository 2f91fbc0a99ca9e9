"""The kernels in plain torch: slow, short, and the definition of every other backend.

32-bit words live in int64 tensors here, because torch lacks most of uint32. The layout of tiles,
random bits and packed codes is in `formats/layout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.kernels.formats.layout import packed_nbytes
from gradwire.kernels.reference import tiles
from gradwire.kernels.reference.dithered import dequantize_dithered, quantize_dithered
from gradwire.kernels.reference.elias import elias_decode, elias_encode, elias_sizes, omega
from gradwire.kernels.reference.exponential import exp_dequantize, exp_quantize, exp_reduce
from gradwire.kernels.reference.fields import dequantize_fields, quantize_fields
from gradwire.kernels.reference.floats import mean_floats
from gradwire.kernels.reference.nested import add_nested, quantize_nested
from gradwire.kernels.reference.pack import pack, unpack
from gradwire.kernels.reference.rangefloat import range_float_decode, range_float_encode
from gradwire.kernels.reference.sparse import (
    compact,
    count_bits,
    expand,
    gap_decode,
    gap_encode,
    gap_sizes,
    largest,
    select,
)
from gradwire.kernels.reference.subspace import combine, project
from gradwire.kernels.reference.sums import add_packed, dequantize_sum
from gradwire.kernels.reference.tiles import block_scales, philox
from gradwire.kernels.reference.transforms import transform, transform_back
from gradwire.key import Key

__all__ = [
    "add_nested",
    "add_packed",
    "block_scales",
    "combine",
    "compact",
    "count_bits",
    "dequantize",
    "dequantize_dithered",
    "dequantize_fields",
    "dequantize_mean",
    "dequantize_sum",
    "elias_decode",
    "elias_encode",
    "elias_sizes",
    "exp_dequantize",
    "exp_quantize",
    "exp_reduce",
    "expand",
    "gap_decode",
    "gap_encode",
    "gap_sizes",
    "largest",
    "mean_floats",
    "omega",
    "philox",
    "project",
    "quantize",
    "quantize_dithered",
    "quantize_fields",
    "quantize_nested",
    "range_float_decode",
    "range_float_encode",
    "select",
    "transform",
    "transform_back",
]  # fmt: skip


def quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
    shift: int = 0,
) -> None:
    """Round x / scale * levels to an integer up or down at random, and pack it.

    The code of a value is that integer plus `levels`, in [0, 2 * levels]. The fraction is kept
    to 16 bits, rounded to nearest, and met by 16 random bits: the bias is at most 2^-17 of a
    step, and levels / 128 * 2^-16 more for the rounding of the product. `norm` says which scales
    to compute first; None takes them as given. A block whose scale is NaN gets zero codes. `shift`
    is added to the random bits, modulo 2^16.
    """
    if norm is not None:
        block_scales(x, scales, block=block, norm=norm)
    for start, stop, rows, size in tiles.tiles(x.numel()):
        values = tiles.padded(x[start:stop].float(), rows * size).view(rows, size)
        scale = tiles.scale_of_values(scales, start, rows, size, block)
        dither = (tiles.half_words((offset + start) // 8, rows, size, key) + shift) & 0xFFFF
        packed = pack(tiles.stochastic_code(values, scale, dither, levels), width)
        at = packed_nbytes(start, width)
        codes[at : at + packed.numel()] = packed


def dequantize(
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """Write, or add, weight * scale / levels * (code - levels) to `out` (float32)."""
    ratio = torch.tensor(weight / levels, dtype=torch.float32)
    for start, stop, rows, size in tiles.tiles(out.numel()):
        packed = codes[packed_nbytes(start, width) :][: packed_nbytes(rows * size, width)]
        level = (unpack(packed.view(rows, -1), width) - levels).float()
        values = level * (tiles.scale_of_values(scales, start, rows, size, block) * ratio)
        values = values.view(-1)[: stop - start]
        out[start:stop] = out[start:stop] + values if accumulate else values


def dequantize_mean(
    scales: Sequence[Tensor],
    codes: Sequence[Tensor],
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
) -> None:
    """Write the mean of several to `out`, added up in their order."""
    for i, (scale, packed) in enumerate(zip(scales, codes, strict=True)):
        dequantize(
            scale, packed, out, levels=levels, width=width, block=block, weight=1 / len(scales),
            accumulate=i > 0,
        )  # fmt: skip
