"""The kernels in Numba, near memcpy in speed.

What makes them vectorize: every loop has unit stride over a tile that stays in L1, and 32-bit
arithmetic goes through intrinsics, since Numba widens uint32 products to 64 bits. Calls release the
GIL, and `threads.set_num_threads` cuts large ones into spans for a small pool of threads.

Beside the files that every backend has, there are those that only Numba needs: `compiler`,
`intrinsics`, `lanes` and `skinny` (what LLVM is told in its own terms), `calls` (tensors as
arrays), `butterflies`, `gaussian` and `rotation` (what rotations are made of), `digits` and
`streams` (what prefix codes are made of), `exponents`, `patterns` and `words` (those of
`lossless`), `kept`, `largest` and `rangefloat` (the steps of
`spectra`) and `threads`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.kernels.cpu.dithered import dequantize_dithered, quantize_dithered
from gradwire.kernels.cpu.elias import elias_decode, elias_encode, elias_sizes
from gradwire.kernels.cpu.entropy import count_ratios, decode_dithered, encode_dithered
from gradwire.kernels.cpu.exponential import exp_dequantize, exp_quantize, exp_reduce
from gradwire.kernels.cpu.fields import dequantize_fields, quantize_fields
from gradwire.kernels.cpu.floats import mean_floats
from gradwire.kernels.cpu.huffman import huffman_decode, huffman_encode
from gradwire.kernels.cpu.levels import add_levels, fit_levels
from gradwire.kernels.cpu.lossless import mean_packed_floats, pack_floats, unpack_floats
from gradwire.kernels.cpu.low_rank import (
    add_outer,
    column_products,
    orthonormalize,
    row_products,
    settle_outer,
)
from gradwire.kernels.cpu.nested import add_nested, quantize_nested
from gradwire.kernels.cpu.philox import philox
from gradwire.kernels.cpu.quantize import dequantize, dequantize_mean, quantize
from gradwire.kernels.cpu.rotated import dequantize_rotated, quantize_rotated
from gradwire.kernels.cpu.scales import block_scales, block_steps
from gradwire.kernels.cpu.sparse import gap_decode, gap_encode, gap_sizes
from gradwire.kernels.cpu.spectra import add_spectra, keep_spectra
from gradwire.kernels.cpu.subspace import combine, project
from gradwire.kernels.cpu.sums import add_packed, dequantize_sum
from gradwire.kernels.cpu.topk import largest_of_blocks
from gradwire.kernels.cpu.turned import rotate_blocks, rotate_blocks_back

if TYPE_CHECKING:
    from gradwire.kernels import Kernels, cpu

    _same: Kernels = cpu  # here, so that mypy looks again when one of its files changes

__all__ = [
    "add_levels",
    "add_nested",
    "add_outer",
    "add_packed",
    "add_spectra",
    "block_scales",
    "block_steps",
    "column_products",
    "combine",
    "count_ratios",
    "decode_dithered",
    "dequantize",
    "dequantize_dithered",
    "dequantize_fields",
    "dequantize_mean",
    "dequantize_rotated",
    "dequantize_sum",
    "elias_decode",
    "elias_encode",
    "elias_sizes",
    "encode_dithered",
    "exp_dequantize",
    "exp_quantize",
    "exp_reduce",
    "fit_levels",
    "gap_decode",
    "gap_encode",
    "gap_sizes",
    "huffman_decode",
    "huffman_encode",
    "keep_spectra",
    "largest_of_blocks",
    "mean_floats",
    "mean_packed_floats",
    "orthonormalize",
    "pack_floats",
    "philox",
    "project",
    "quantize",
    "quantize_dithered",
    "quantize_fields",
    "quantize_nested",
    "quantize_rotated",
    "rotate_blocks",
    "rotate_blocks_back",
    "row_products",
    "settle_outer",
    "unpack_floats",
]
