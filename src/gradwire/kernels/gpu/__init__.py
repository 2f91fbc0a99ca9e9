"""The kernels in Triton, for CUDA and ROCm, with the bits of the reference.

Nothing but the memory that is read and written should cost time: a vector is read once to encode
it, scales and packing included, and the codes of all peers once to average them. `tiles.py` says
how. A product is never fused with a sum, and division and roots are rounded to nearest, as IEEE
754 has it. `docs/gpu.md` says how all of it is proven without a GPU.

Kernels that are not here say so when they are asked for. Beside the files that every backend has,
there are `compiler`; `blocks`, what a program does with the scales of its values; `largest`, how
the largest are found; `rotation` and `gaussian`, what is rotated and its codes; and what `spectra`
needs besides.
"""

from __future__ import annotations

from typing import NoReturn

from gradwire.kernels.gpu.dithered import dequantize_dithered, quantize_dithered
from gradwire.kernels.gpu.exponential import exp_dequantize, exp_quantize, exp_reduce
from gradwire.kernels.gpu.fields import dequantize_fields, quantize_fields
from gradwire.kernels.gpu.floats import mean_floats
from gradwire.kernels.gpu.levels import add_levels, fit_levels
from gradwire.kernels.gpu.low_rank import (
    add_outer,
    column_products,
    orthonormalize,
    row_products,
    settle_outer,
)
from gradwire.kernels.gpu.nested import add_nested, quantize_nested
from gradwire.kernels.gpu.philox import philox
from gradwire.kernels.gpu.quantize import dequantize, dequantize_mean, quantize
from gradwire.kernels.gpu.rotated import dequantize_rotated, quantize_rotated
from gradwire.kernels.gpu.scales import block_scales, block_steps
from gradwire.kernels.gpu.sparse import gap_decode, gap_encode, gap_sizes
from gradwire.kernels.gpu.spectra import add_spectra, keep_spectra
from gradwire.kernels.gpu.subspace import combine, project
from gradwire.kernels.gpu.sums import add_packed, dequantize_sum
from gradwire.kernels.gpu.topk import largest_of_blocks
from gradwire.kernels.gpu.turned import rotate_blocks, rotate_blocks_back
from gradwire.kernels.protocol import Kernels

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
    "dequantize",
    "dequantize_dithered",
    "dequantize_fields",
    "dequantize_mean",
    "dequantize_rotated",
    "dequantize_sum",
    "exp_dequantize",
    "exp_quantize",
    "exp_reduce",
    "fit_levels",
    "gap_decode",
    "gap_encode",
    "gap_sizes",
    "keep_spectra",
    "largest_of_blocks",
    "mean_floats",
    "orthonormalize",
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
]


def __getattr__(name: str) -> NoReturn:
    if hasattr(Kernels, name) and not name.startswith("_"):
        raise NotImplementedError(
            f"gradwire has no kernel `{name}` for GPUs yet; use a codec that needs none "
            "(docs/gpu.md lists them), or move the tensor with `.cpu()`."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
