"""The largest coefficients of every block in plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradwire.kernels.formats.rangefloat import (
    fitted_base,
    half_eps,
    is_base,
    largest_code,
    num_positive,
)
from gradwire.kernels.formats.spectra import STRIP, Form, Kept
from gradwire.kernels.reference.pack import pack, unpack
from gradwire.kernels.reference.sparse import read_bits, write_bits
from gradwire.kernels.reference.transforms import transform, transform_back

_NOT_FINITE = 0x7F800000


def keep_spectra(
    x: Tensor,
    others: Sequence[Kept],
    kept: Kept,
    rest: Tensor | None,
    *,
    domain: str,
    form: Form,
) -> bool | Tensor:
    c = _turned(x, domain, form.block)
    for other in others:
        if not _add(other, c, form):
            return False
    if others:
        c *= 1.0 / (1 + len(others))
    chosen, width = torch.zeros(8 * kept.bitmap.numel(), dtype=torch.bool), form.scale_nbytes
    for at, strip, codes in _strips(c, kept.codes, form):
        rows = []
        for i, block in enumerate(torch.split(strip, form.block)):
            found, base = _largest(block, form.kept_of(block.numel())), _base(block, form)
            chosen[at + i * form.block :][found] = True
            kept.scales.view(-1, width)[at // form.block + i] = _octets(base, width)
            rows.append(_codes(block[found] if base else torch.zeros(len(found)), base, form))
        _put(torch.cat(rows), codes, form)
    write_bits(chosen, kept.bitmap)
    if rest is not None:
        _add(kept, said := torch.zeros_like(c), form)
        _turn_back(c - said, rest, domain, form.block, float(1 + len(others)), False)
    return True


def add_spectra(
    kept: Sequence[Kept],
    out: Tensor,
    *,
    domain: str,
    form: Form,
    weight: float = 1.0,
    accumulate: bool = False,
) -> bool | Tensor:
    c = torch.zeros_like(out)
    if not all(_add(each, c, form) for each in kept):
        return False
    _turn_back(c, out, domain, form.block, weight, accumulate)
    return True


def _strips(c: Tensor, codes: Tensor, form: Form) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(first coefficient, coefficients, codes) of each strip."""
    size = STRIP * form.block
    for at in range(0, c.numel(), size):
        strip = c[at : at + size]
        start = form.codes_nbytes(at)
        yield at, strip, codes[start : start + form.codes_nbytes(strip.numel())]


def _turned(x: Tensor, domain: str, block: int) -> Tensor:
    if domain == "time":
        return x.clone()
    transform(x, c := torch.empty_like(x), domain=domain, block=block)
    return c


def _turn_back(
    c: Tensor, out: Tensor, domain: str, block: int, weight: float, accumulate: bool
) -> None:
    if domain != "time":
        transform_back(c, out, domain=domain, block=block, weight=weight, accumulate=accumulate)
    else:
        out.copy_(out + c * weight if accumulate else c * weight)


def _largest(block: Tensor, count: int) -> Tensor:
    """Where they are, in order; the first of a block that is not finite."""
    patterns = _magnitudes(block)
    if (patterns >= _NOT_FINITE).any():
        return torch.arange(count)
    return patterns.sort(descending=True, stable=True).indices[:count].sort().values


def _base(block: Tensor, form: Form) -> int:
    largest = int(_magnitudes(block).max())
    if largest >= _NOT_FINITE:
        return 0
    if form.bits is None:
        return 1
    return fitted_base(largest, bits=form.bits, mantissa=form.mantissa)


def _codes(values: Tensor, base: int, form: Form) -> Tensor:
    if form.bits is None:
        return values
    shift, top = 23 - form.mantissa, num_positive(form.bits)
    magnitude = _magnitudes(values)
    code = (((magnitude + (1 << shift - 1)) >> shift) - base + 1).clamp(1, top)
    code = torch.where(magnitude < half_eps(max(base, 1), form.mantissa), 0, code)
    negative = values.signbit() & (code > 0)
    return torch.where(negative, code + top, code)


def _put(codes: Tensor, out: Tensor, form: Form) -> None:
    if form.bits is None:
        out.copy_(codes.view(torch.uint8))
        return
    padded = torch.nn.functional.pad(codes, (0, -codes.numel() % 8))
    out.copy_(pack(padded.view(1, -1), form.bits))


def _take(packed: Tensor, form: Form) -> Tensor:
    if form.bits is None:
        return packed.clone().view(torch.float32)
    return unpack(packed.view(1, -1), form.bits).view(-1)


def _values(code: Tensor, base: int, form: Form) -> Tensor:
    if form.bits is None:
        return code
    shift, top = 23 - form.mantissa, num_positive(form.bits)
    negative = code > top
    step = torch.where(negative, code - top, code) - 1 + base
    pattern = step.clamp_max(largest_code(form.mantissa)) << shift
    value = torch.where(code > 0, pattern, 0).to(torch.int32).view(torch.float32)
    return torch.where(negative, -value, value)


def _add(kept: Kept, c: Tensor, form: Form) -> bool:
    """Add what is kept to the coefficients `c`; False if it is damaged."""
    chosen = read_bits(kept.bitmap)
    if chosen[c.numel() :].any():
        return False
    for at, strip, packed in _strips(c, kept.codes, form):
        codes = _take(packed, form)
        for i, block in enumerate(torch.split(strip, form.block)):
            where = chosen[at + i * form.block :][: block.numel()]
            code = codes[i * form.count :][: form.kept_of(block.numel())]
            base = _integer(kept.scales.view(-1, form.scale_nbytes)[at // form.block + i])
            if int(where.count_nonzero()) != len(code) or not _is_scale(base, form):
                return False
            if base:
                block[where] += _values(code, base, form)
            else:
                block.fill_(torch.nan)
    return True


def _is_scale(base: int, form: Form) -> bool:
    if form.bits is None:
        return base <= 1
    return base == 0 or is_base(base, bits=form.bits, mantissa=form.mantissa)


def _octets(number: int, nbytes: int) -> Tensor:
    return torch.tensor(list(number.to_bytes(nbytes, "little")), dtype=torch.uint8)


def _integer(octets: Tensor) -> int:
    return int.from_bytes(octets.numpy().tobytes(), "little")


def _magnitudes(x: Tensor) -> Tensor:
    return x.view(torch.int32).to(torch.int64) & 0x7FFFFFFF
