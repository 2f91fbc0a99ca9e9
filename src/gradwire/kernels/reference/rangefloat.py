"""Range floats in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.formats.rangefloat import half_eps, largest_code, num_positive
from gradwire.kernels.reference.pack import pack_codes, unpack_codes


def range_float_encode(
    values: Tensor, codes: Tensor, *, bits: int, mantissa: int, base: int
) -> None:
    shift, top = 23 - mantissa, num_positive(bits)
    magnitude = values.view(torch.int32).to(torch.int64) & 0x7FFFFFFF
    code = (((magnitude + (1 << shift - 1)) >> shift) - base + 1).clamp(1, top)
    code = torch.where(magnitude < half_eps(base, mantissa), 0, code)
    negative = values.signbit() & (code > 0)
    pack_codes(torch.where(negative, code + top, code), codes, bits)


def range_float_decode(codes: Tensor, out: Tensor, *, bits: int, mantissa: int, base: int) -> None:
    shift, top = 23 - mantissa, num_positive(bits)
    code = unpack_codes(codes, out.numel(), bits)
    negative = code > top
    step = torch.where(negative, code - top, code) - 1 + base
    pattern = step.clamp_max(largest_code(mantissa)) << shift
    value = torch.where(code > 0, pattern, 0).to(torch.int32).view(torch.float32)
    out.copy_(torch.where(negative, -value, value))
