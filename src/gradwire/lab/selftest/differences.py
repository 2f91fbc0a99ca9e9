"""Where two tensors differ, to the last bit."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(expected: Tensor, got: Tensor, *, any_nan: bool = False) -> str | None:
    """A sentence, None if all bits are the same.

    any_nan: one NaN is as good as another. NVIDIA has but one, other processors hand on operands.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
    '1 of 2 values differs, number 1 is the first: expected 2.0 (0x40000000), got 2.5 (0x40200000)'
    """
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return f"expected {_kind(expected)}, got {_kind(got)}"
    a, b = (_bits(x, any_nan) for x in (expected, got))
    places = (a != b).nonzero().flatten()
    if not len(places):
        return None
    first = int(places[0])
    differ = "differs" if len(places) == 1 else "differ"
    return (
        f"{len(places):,} of {a.numel():,} values {differ}, number {first:,} is the first: "
        f"expected {_shown(expected, a, first)}, got {_shown(got, b, first)}"
    )


def _bits(x: Tensor, any_nan: bool) -> Tensor:
    x = x.contiguous().view(-1)
    if any_nan and x.is_floating_point():
        x = torch.where(x.isnan(), torch.nan, x)
    return x.view(_INTEGERS[x.element_size()])


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"


def _shown(x: Tensor, bits: Tensor, place: int) -> str:
    value = x.reshape(-1)[place].item()
    size = 8 * x.element_size()
    return f"{value} (0x{bits[place].item() % (1 << size):x})"
