"""The kernels in plain torch: slow, short, and the definition of every bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.kernels.reference.dithered import dequantize_dithered, quantize_dithered
from gradwire.kernels.reference.elias import elias_decode, elias_encode, elias_sizes
from gradwire.kernels.reference.entropy import count_ratios, decode_dithered, encode_dithered
from gradwire.kernels.reference.exponential import exp_dequantize, exp_quantize, exp_reduce
from gradwire.kernels.reference.fields import dequantize_fields, quantize_fields
from gradwire.kernels.reference.floats import mean_floats
from gradwire.kernels.reference.huffman import huffman_decode, huffman_encode
from gradwire.kernels.reference.levels import add_levels, fit_levels
from gradwire.kernels.reference.lossless import mean_packed_floats, pack_floats, unpack_floats
from gradwire.kernels.reference.low_rank import (
    add_outer,
    column_products,
    orthonormalize,
    row_products,
    settle_outer,
)
from gradwire.kernels.reference.nested import add_nested, quantize_nested
from gradwire.kernels.reference.philox import philox
from gradwire.kernels.reference.quantize import dequantize, dequantize_mean, quantize
from gradwire.kernels.reference.rotated import dequantize_rotated, quantize_rotated
from gradwire.kernels.reference.scales import block_scales, block_steps
from gradwire.kernels.reference.sparse import gap_decode, gap_encode, gap_sizes
from gradwire.kernels.reference.spectra import add_spectra, keep_spectra
from gradwire.kernels.reference.subspace import combine, project
from gradwire.kernels.reference.sums import add_packed, dequantize_sum
from gradwire.kernels.reference.topk import largest_of_blocks
from gradwire.kernels.reference.turned import rotate_blocks, rotate_blocks_back

if TYPE_CHECKING:
    from gradwire.kernels import Kernels, reference

    _same: Kernels = reference  # here, so that mypy looks again when one of its files changes

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
