"""The launches of `spectra.py`: blocks are transformed, added up, chosen from and turned back.

A program has some blocks in registers, as rows of coefficients, about a thousand in all. `first`
and `limit` are as in `kept.py`; `x`, `rest` and `out` begin with value `first`. What is the same
for all peers is computed for each (`disable_licm`): registers that kept it would make others spill.
"""

from __future__ import annotations

import triton.language as tl

from gradwire.kernels.gpu.bitmaps import load_bits, store_bitmap
from gradwire.kernels.gpu.compiler import jit, kernel, roomy_kernel, static
from gradwire.kernels.gpu.fourier import one_nan, place_in_time, turned, turned_back
from gradwire.kernels.gpu.kept import (
    chosen_of,
    coded,
    decoded,
    fitted_base,
    is_scale,
    load_base,
    load_codes,
    sizes_of,
    store_base,
    store_code,
    wanted_of,
)

_DCT = tl.constexpr(2)


@static
def rows_of(size: int) -> int:
    """The blocks of a program."""
    return max(1024 // size, 1)


@jit
def _skipped(SIZE: tl.constexpr):
    """How many values other programs have before this one."""
    return tl.program_id(0).to(tl.int64) * (rows_of(SIZE) * SIZE)


@jit
def _places(SIZE: tl.constexpr):
    """Where the values of a program are."""
    return tl.arange(0, rows_of(SIZE))[:, None] * SIZE + tl.arange(0, SIZE)[None, :]


@jit
def _load(x, left, SIZE: tl.constexpr):
    if left >= rows_of(SIZE) * SIZE:
        values = tl.load(x + _places(SIZE))
    else:
        values = tl.load(x + _places(SIZE), mask=_places(SIZE) < left, other=0.0)
    return values


@jit
def _put(
    out, c, left, weight, levels, split, turns, scale, ends,
    SIZE: tl.constexpr, DOMAIN: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Write, or add, what coefficients stand for, times `weight`."""
    row, column = tl.arange(0, rows_of(SIZE))[:, None] * SIZE, tl.arange(0, SIZE)[None, :]
    at = row + place_in_time(column, SIZE, DOMAIN == _DCT)
    if DOMAIN and SIZE > 1:
        c = turned_back(c, levels, split, turns, scale, ends, DOMAIN == _DCT)
    values = c * weight
    if ADD:
        values = tl.load(out + at, mask=at < left, other=0.0) + values
    if DOMAIN:
        values = one_nan(values)
    if left >= rows_of(SIZE) * SIZE:
        tl.store(out + at, values)
    else:
        tl.store(out + at, values, mask=at < left)


@jit
def _add_peer(
    c, scales, bitmaps, codes, peer, first, limit, stop, numel, number, count, damaged,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """`c` and what one peer has sent; what is damaged of it is NaN, and then a word is set."""
    octets = tl.pointer_type(tl.uint8)
    bits = load_bits(
        tl.load(bitmaps + peer).to(octets), first, stop, rows_of(SIZE), SIZE
    )  # fmt: skip
    sizes = sizes_of(c, limit - first)
    row = first // SIZE + tl.arange(0, rows_of(SIZE))[:, None]
    base = load_base(tl.load(scales + peer).to(octets), row, sizes > 0, WIDTH, SHIFT)
    counts, wanted = tl.cumsum(bits, 1), wanted_of(sizes, count, SIZE)  # bits: integers
    column = tl.arange(0, SIZE)[None, :]
    chosen = (bits > 0) & (column < sizes) & (counts <= wanted)
    wrong = tl.max(counts, 1, keep_dims=True) != wanted
    wrong |= tl.max(bits * (column >= sizes).to(tl.int32), 1, keep_dims=True) > 0
    wrong |= ~is_scale(base, WIDTH, SHIFT)
    if tl.max(wrong.to(tl.int32)) > 0:
        tl.store(damaged, 1)
    is_whole = ((first // SIZE + rows_of(SIZE) - 1) // 8 + 1) * 8 * SIZE <= numel
    code = load_codes(
        tl.load(codes + peer).to(octets), row, counts - 1, chosen, count, number, is_whole, WIDTH
    )  # fmt: skip
    total = tl.where(chosen, c + decoded(code, base, WIDTH, SHIFT), c)
    return tl.where((base > 0) & ~wrong, total, float("nan"))


@roomy_kernel
def keep_blocks(
    x, scales, bitmap, codes, rest, damaged, their_scales, their_bitmaps, their_codes, peers,
    share, weight, first, limit, stop, numel, number, count, levels, split, turns, scale, ends,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, SHIFT: tl.constexpr, DOMAIN: tl.constexpr,
    REST: tl.constexpr,
):  # fmt: skip
    at = first + _skipped(SIZE)
    c = _load(x + _skipped(SIZE), limit - at, SIZE)
    if DOMAIN:
        c = turned(c, levels, split, turns, scale, ends, DOMAIN == _DCT)
    for peer in tl.range(0, peers, disable_licm=True):
        c = _add_peer(
            c, their_scales, their_bitmaps, their_codes, peer, at, limit, stop, numel, number,
            count, damaged, SIZE, WIDTH, SHIFT,
        )  # fmt: skip
    c *= share
    bits, sizes = c.to(tl.int32, bitcast=True), sizes_of(c, limit - at)
    tops, chosen, places = chosen_of(bits, tl.arange(0, SIZE)[None, :] < sizes, sizes, count)
    base = fitted_base(tops, WIDTH, SHIFT)
    row = at // SIZE + tl.arange(0, rows_of(SIZE))[:, None]
    code = coded(bits, base, WIDTH, SHIFT)
    store_bitmap(bitmap, chosen, at, stop)
    store_base(scales, base, row, sizes > 0, WIDTH, SHIFT)
    store_code(codes, code, row * count + places - 1, chosen, WIDTH)
    if REST:
        said = tl.where(chosen, decoded(code, base, WIDTH, SHIFT) + 0.0, 0.0)  # -0 counts as 0
        left = tl.where(base > 0, c - said, float("nan"))
        _put(
            rest + _skipped(SIZE), left, limit - at, weight, levels, split, turns, scale, ends,
            SIZE, DOMAIN, False,
        )  # fmt: skip


@kernel
def add_blocks(
    out, scales, bitmaps, codes, peers, damaged, weight, first, limit, stop, numel, number, count,
    levels, split, turns, scale, ends,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, SHIFT: tl.constexpr, DOMAIN: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    at = first + _skipped(SIZE)
    c = tl.zeros((rows_of(SIZE), SIZE), tl.float32)
    for peer in tl.range(0, peers, disable_licm=True):
        c = _add_peer(
            c, scales, bitmaps, codes, peer, at, limit, stop, numel, number, count, damaged, SIZE,
            WIDTH, SHIFT,
        )  # fmt: skip
    _put(
        out + _skipped(SIZE), c, limit - at, weight, levels, split, turns, scale, ends,
        SIZE, DOMAIN, ADD,
    )  # fmt: skip


@kernel
def turn_block(
    x, out, weight, levels, split, turns, scale, ends,
    SIZE: tl.constexpr, DOMAIN: tl.constexpr, BACK: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """One block alone."""
    values, at = _load(x, SIZE, SIZE), _places(SIZE)
    if BACK:
        _put(out, values, SIZE, weight, levels, split, turns, scale, ends, SIZE, DOMAIN, ADD)
    else:
        if SIZE > 1:
            values = turned(values, levels, split, turns, scale, ends, DOMAIN == _DCT)
        tl.store(out + at, one_nan(values), mask=at < SIZE)
