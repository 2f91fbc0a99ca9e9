"""The largest coefficients of every block in Triton.

Whole blocks are transformed, added to what others sent, chosen and rounded by one launch, and what
is left of them turned back: values are read once. A last, shorter block is cut into powers of two,
which are transformed first and turned back last, each by a launch of its own.

What is damaged is NaN, and noted in a word on the device, which stays there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.kernels.formats.spectra import Form, Kept
from gradwire.kernels.gpu.coefficients import add_blocks, keep_blocks, rows_of, turn_block
from gradwire.kernels.gpu.compiler import addresses, launch, single
from gradwire.kernels.gpu.fourier import MOST, tables_of
from gradwire.kernels.gpu.pack import pack_tiles
from gradwire.kernels.twiddles import pieces

_DOMAINS = {"time": 0, "fft": 1, "dct": 2}


def _turn_pieces(
    x: Tensor, out: Tensor, domain: str, *, back: bool, weight: float = 1.0, add: bool = False
) -> None:
    """Transform what is less than a block, each power of two alone."""
    for start, stop, size in pieces(x.numel(), 2 * MOST):
        launch(
            turn_block, 1, x[start:stop], out[start:stop], single(weight),
            **tables_of(max(size, 2), x.device),
            SIZE=size, DOMAIN=_DOMAINS[domain], BACK=back, ADD=add,
        )  # fmt: skip


def keep_spectra(
    x: Tensor,
    others: Sequence[Kept],
    kept: Kept,
    rest: Tensor | None,
    *,
    domain: str,
    form: Form,
) -> bool | Tensor:
    numel, whole, times = x.numel(), _whole(x.numel(), form), 1 + len(others)
    damaged, codes = x.new_zeros(1, dtype=torch.int32), _room_for_codes(kept.codes, numel, form)
    peers = _peers(others or [kept])

    def keep(x: Tensor, rest: Tensor | None, domain: str, weight: float, span: Any) -> None:
        launch(
            keep_blocks, _programs(span, form), x, kept.scales, kept.bitmap, codes,
            x if rest is None else rest, damaged, *peers, len(others), single(1 / times),
            single(weight), **span, **_how(domain, numel, form, x.device), REST=rest is not None,
        )  # fmt: skip

    keep(x, rest, domain, times, _span(0, whole, numel))
    if whole < numel and domain == "time":
        left = None if rest is None else rest[whole:]
        keep(x[whole:], left, domain, times, _span(whole, numel, numel))
    elif whole < numel:
        c = torch.empty_like(x[whole:])
        _turn_pieces(x[whole:], c, domain, back=False)
        keep(c, None if rest is None else c, "time", 1.0, _span(whole, numel, numel))
        if rest is not None:
            _turn_pieces(c, rest[whole:], domain, back=True, weight=times)
    if form.bits is not None:
        pack_tiles(codes, kept.codes, form.kept(numel), each=form.count, width=form.bits)
    return damaged == 0


def add_spectra(
    kept: Sequence[Kept],
    out: Tensor,
    *,
    domain: str,
    form: Form,
    weight: float = 1.0,
    accumulate: bool = False,
) -> bool | Tensor:
    numel, whole = out.numel(), _whole(out.numel(), form)
    damaged, peers = out.new_zeros(1, dtype=torch.int32), _peers(kept)

    def add(out: Tensor, domain: str, weight: float, accumulate: bool, span: Any) -> None:
        launch(
            add_blocks, _programs(span, form), out, *peers, len(kept), damaged, single(weight),
            **span, **_how(domain, numel, form, out.device), ADD=accumulate,
        )  # fmt: skip

    add(out, domain, weight, accumulate, _span(0, whole, numel))
    if whole < numel and domain == "time":
        add(out[whole:], domain, weight, accumulate, _span(whole, numel, numel))
    elif whole < numel:
        c = torch.empty_like(out[whole:])
        add(c, "time", 1.0, False, _span(whole, numel, numel))
        _turn_pieces(c, out[whole:], domain, back=True, weight=weight, add=accumulate)
    return damaged == 0


def _whole(numel: int, form: Form) -> int:
    """How many values are in whole blocks."""
    if form.block > MOST:
        raise NotImplementedError(
            f"on a GPU, `block` is at most {MOST} for spectra, got {form.block}; use a smaller "
            "one, or move the tensor with `.cpu()`."
        )
    return numel // form.block * form.block


def _span(first: int, limit: int, numel: int) -> dict[str, int]:
    """The values from `first` to `limit`, and where their bytes of a bitmap end."""
    stop = 8 * -(-numel // 64) if limit == numel else limit // 8
    return {"first": first, "limit": limit, "stop": stop}


def _programs(span: dict[str, int], form: Form) -> int:
    return -(-(span["limit"] - span["first"]) // int(rows_of(form.block) * form.block))


def _how(domain: str, numel: int, form: Form, device: torch.device) -> dict[str, Any]:
    return {
        "numel": numel, "number": form.kept(numel), "count": form.count,
        **tables_of(form.block, device), "SIZE": form.block, "WIDTH": form.bits or 0,
        "SHIFT": 23 - form.mantissa, "DOMAIN": _DOMAINS[domain],
    }  # fmt: skip


def _peers(kept: Sequence[Kept]) -> list[Tensor]:
    """Where scales, bitmaps and codes are."""
    return [addresses(parts) for parts in zip(*kept, strict=True)]


def _room_for_codes(codes: Tensor, numel: int, form: Form) -> Tensor:
    """Codes one by one: floats where they belong, others in a byte or two until they are packed."""
    if form.bits is None:
        return codes
    dtype = torch.uint8 if form.bits <= 8 else torch.int16
    return codes.new_empty(form.kept(numel), dtype=dtype)
