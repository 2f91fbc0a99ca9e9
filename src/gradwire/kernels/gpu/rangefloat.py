"""Range floats in Triton."""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from gradwire.kernels.formats.rangefloat import half_eps, largest_code
from gradwire.kernels.gpu.compiler import jit, kernel, launch
from gradwire.kernels.gpu.pack import load_packed, store_packed
from gradwire.kernels.gpu.tiles import (
    EIGHTH,
    GROUP,
    is_whole,
    load_eighth,
    num_groups,
    ragged,
    skip,
    store_eighth,
)


@jit
def _encode_group(x, codes, stride, left, places, base, half, BITS: tl.constexpr):
    top: tl.constexpr = (1 << (BITS - 1)) - 1
    packed = ()
    for s in tl.static_range(8):
        bits = load_eighth(skip(x, GROUP), stride, left, s).to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        code = ((magnitude + (1 << (places - 1))) >> places) - base + 1
        code = tl.where(magnitude < half, 0, tl.minimum(tl.maximum(code, 1), top))
        packed += (tl.where((bits < 0) & (code > 0), code + top, code),)
    store_packed(skip(codes, GROUP // 8 * BITS), packed, stride, left, BITS)


@kernel
def _range_float_encode(x, codes, numel, places, base, half, BITS: tl.constexpr):
    if is_whole(numel):
        _encode_group(x, codes, EIGHTH, None, places, base, half, BITS)
    else:
        stride, left = ragged(numel)
        _encode_group(x, codes, stride, left, places, base, half, BITS)


def range_float_encode(
    values: Tensor, codes: Tensor, *, bits: int, mantissa: int, base: int
) -> None:
    launch(
        _range_float_encode, num_groups(values.numel()), values, codes, values.numel(),
        23 - mantissa, base, half_eps(base, mantissa), BITS=bits,
    )  # fmt: skip


@jit
def _decode_group(codes, out, stride, left, places, base, largest, BITS: tl.constexpr):
    top: tl.constexpr = (1 << (BITS - 1)) - 1
    code = load_packed(skip(codes, GROUP // 8 * BITS), stride, left, BITS)
    for s in tl.static_range(8):
        negative = code[s] > top
        step = tl.where(negative, code[s] - top, code[s]) - 1 + base
        value = (tl.minimum(step, largest) << places).to(tl.float32, bitcast=True)
        value = tl.where(code[s] > 0, tl.where(negative, -value, value), 0.0)
        store_eighth(skip(out, GROUP), value, stride, left, s)


@kernel
def _range_float_decode(codes, out, numel, places, base, largest, BITS: tl.constexpr):
    if is_whole(numel):
        _decode_group(codes, out, EIGHTH, None, places, base, largest, BITS)
    else:
        stride, left = ragged(numel)
        _decode_group(codes, out, stride, left, places, base, largest, BITS)


def range_float_decode(codes: Tensor, out: Tensor, *, bits: int, mantissa: int, base: int) -> None:
    launch(
        _range_float_decode, num_groups(out.numel()), codes, out, out.numel(),
        23 - mantissa, base, largest_code(mantissa), BITS=bits,
    )  # fmt: skip
