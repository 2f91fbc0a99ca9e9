"""GPU kernels that are broken on purpose, each in one place; `gpu_worker.py` must notice them."""

import contextlib
import importlib

import torch
import triton.language as tl

from gradwire.kernels.gpu.blocks import spread
from gradwire.kernels.gpu.compiler import jit
from gradwire.kernels.gpu.tiles import GROUP, ROWS, TILE, lanes, nearest, rows, skip
from gradwire.lab.selftest.kernel_calls import TABLE


@jit
def left_one_too_many(numel):
    left = (numel - tl.program_id(0).to(tl.int64) * GROUP).to(tl.int32) + 1
    size = tl.minimum(tl.maximum(left - rows() * TILE, 0), TILE)
    return (size + 7) // 8, left


@jit
def all_is_whole(numel):
    return tl.program_id(0) >= 0


@jit
def stores_without_a_mask(out, values, stride, left, s: tl.constexpr):
    tl.store(out + rows() * TILE + s * stride + lanes(), values)


@jit
def a_scale_too_far(scales, tiles, row, left):
    return tl.load(scales + (tl.program_id(0) * ROWS + row) // tiles + 1)


@jit
def does_not_clip(scaled, top):
    whole = nearest(tl.abs(scaled))
    return tl.where(scaled < 0, -whole, whole)


@jit
def looks_at_one_eighth(parts, count: tl.constexpr, L2: tl.constexpr):
    return parts[0]


@jit
def skips_to_the_next_group(pointer, per_group):
    return skip(pointer, per_group) + per_group


@jit
def counts(c0, c1, c2, c3, k0, k1):
    return c0, c0 + 1, c0 + 2, c0 + 3


@jit
def rounds_up(magnitude):
    return (magnitude + 0.5).to(tl.int32)


@jit
def keeps_the_last_ties(patterns, least, ties):
    equal = (patterns == least).to(tl.int32)
    after = tl.sum(equal, 1, keep_dims=True) - tl.cumsum(equal, 1)
    kept = (patterns > least) | ((equal > 0) & (after < ties))
    return kept, tl.cumsum(kept.to(tl.int32), 1)


@jit
def writes_whole_bitmaps(bitmap, kept, first, stop):
    tl.store(bitmap + first // 8 + tl.arange(0, GROUP // 8), tl.zeros((GROUP // 8,), tl.uint8))


@jit
def in_their_order(place, HALF: tl.constexpr):
    return place


@jit
def reads_whole_bitmaps(bitmap, first, stop, rows: tl.constexpr, size: tl.constexpr):
    at = first // 8 + tl.arange(0, rows)[:, None] * size // 8 + tl.arange(0, size)[None, :] // 8
    return tl.load(bitmap + at).to(tl.int32) & 1


@jit
def changes_no_sign(values, words):
    return values


@jit
def all_rows(left, BLOCK: tl.constexpr):
    return tl.where(rows() >= 0, 64, 0)


@jit
def no_padding(left, BLOCK: tl.constexpr):
    return left


@jit
def a_row_before(count, width, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, 8)[:, None] - 1, tl.arange(0, COLUMNS)[None, :]
    return rows.to(tl.int64), columns


@jit
def rounds_twice(a, b, c):
    return a * b + c


@jit
def cuts_after_the_first(start, inside, total, number, count):
    value = tl.load(start, mask=inside, other=0).to(tl.float32, bitcast=True)
    return number * 0 + 1, value.to(tl.float64)


@jit
def a_code_too_far(codes, row, place, chosen, count, number, is_whole, WIDTH: tl.constexpr):
    return tl.load(codes + row * count + place, mask=chosen, other=0).to(tl.int32)


@jit
def counts_from_the_start(places, at, inside):
    return tl.load(places + at, mask=inside, other=0)


@jit
def a_gap_too_many():
    return tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024) - 1


@jit
def all_is_due(residual, shares, which: tl.constexpr):
    return residual


@jit
def adds_what_is_said(values, codes, scale, dithers, levels, ratio, DITHERED: tl.constexpr):
    rest = ()
    for s in tl.static_range(8):
        rest += (values[s] - (codes[s] - levels).to(tl.float32) * spread(scale[s] * ratio),)
    return rest


@jit
def _round(x, out, ROUND: tl.constexpr):
    at = tl.program_id(0) * 4096 + tl.arange(0, 4096)
    tl.store(out + at, ROUND(tl.load(x + at)))


def is_rounded_to_nearest(function=nearest):
    """Whole numbers, ties and their neighbours, up to 2^23: codes show one in 2^17 of them."""
    whole = torch.cat((torch.arange(8192), torch.arange(2**22 - 8192, 2**22 + 8192))).float()
    ties = torch.cat((whole, whole + 0.5))
    x = torch.cat((ties, torch.nextafter(ties, ties + 1), torch.nextafter(ties, ties - 1).abs()))
    out = torch.empty(len(x), dtype=torch.int32)
    _round[(len(x) // 4096,)](x, out, ROUND=function)
    return torch.equal(out, x.round().int())


MUTANTS = {
    "a value too many": ("tiles", "ragged", left_one_too_many, "quantize", "OutsideError"),
    "no ragged group": ("tiles", "is_whole", all_is_whole, "dequantize_dithered", "OutsideError"),
    "no mask": ("tiles", "store_eighth", stores_without_a_mask, "dequantize", "OutsideError"),
    "another scale": ("blocks", "tile_scales", a_scale_too_far, "exp_dequantize", "OutsideError"),
    "another group": ("exponential", "skip", skips_to_the_next_group, "exp_reduce", "OutsideError"),
    "not clipped": ("dithered", "fixed_point", does_not_clip, "quantize_dithered", "other bits"),
    "an eighth": ("blocks", "tree_of_tensors", looks_at_one_eighth, "block_scales", "other bits"),
    "other random bits": ("tiles", "philox_words", counts, "quantize", "other bits"),
    "ties": ("topk", "ranked", keeps_the_last_ties, "largest_of_blocks", "other bits"),
    "bits": ("topk", "store_bitmap", writes_whole_bitmaps, "largest_of_blocks", "OutsideError"),
    "not reversed": ("fourier", "reversed_bits", in_their_order, "add_spectra", "other bits"),
    "other bits": ("coefficients", "load_bits", reads_whole_bitmaps, "add_spectra", "OutsideError"),
    "no signs": ("rotation", "_flip", changes_no_sign, "quantize_rotated", "other bits"),
    "tiles of padding": (
        "rotated",
        "padded_rows",
        all_rows,
        "dequantize_rotated",
        "OutsideError",
    ),
    "no padding": ("turned", "_padded", no_padding, "rotate_blocks", "other bits"),
    "not fused": ("subspace", "fused", rounds_twice, "project", "other bits"),
    "a row before": ("subspace", "tile_of", a_row_before, "combine", "OutsideError"),
    "another cut": ("levels", "_best_cut", cuts_after_the_first, "fit_levels", "other bits"),
    "not packed": ("levels", "load_codes", a_code_too_far, "add_levels", "OutsideError"),
    "no gaps": ("sparse", "_load_gaps", counts_from_the_start, "gap_encode", "other bits"),
    "before the first": ("sparse", "_own_gaps", a_gap_too_many, "gap_decode", "OutsideError"),
    "a lane more": ("low_rank", "_LANES", tl.constexpr(32), "row_products", "other bits"),
    "two roundings": ("low_rank", "fused", rounds_twice, "column_products", "other bits"),
    "shares": ("debt", "_parts", all_is_due, "quantize", "other bits"),
    "sign": ("quantize", "_not_said", adds_what_is_said, "quantize", "other bits"),
    "another debt": ("debt", "skip", skips_to_the_next_group, "quantize", "OutsideError"),
    "digits": ("pack", "place_of", lambda width, digit: 0, "dequantize", "other bits"),
}
"""(module, what is replaced in it, by what, the kernel that is called, what is noticed)"""


@contextlib.contextmanager
def replaced(module, name, broken):
    module = importlib.import_module(f"gradwire.kernels.gpu.{module}")
    right = getattr(module, name)
    setattr(module, name, broken)
    try:
        yield
    finally:
        setattr(module, name, right)


def caught(complaint):
    """For each mutant what has given it away, None if nothing has."""
    found = {name: how(complaint, *mutant) for name, mutant in MUTANTS.items()}
    return found | {"rounded up": None if is_rounded_to_nearest(rounds_up) else "other bits"}


def how(complaint, module, attribute, broken, kernel, kind):
    with replaced(module, attribute, broken):
        for case in spread_out(list(TABLE[kernel].calls(1500, torch.float32))):
            if kind in (complaint(kernel, case) or ""):
                return kind
    return None


def spread_out(calls, apart=9):
    """All of them, neighbours far from each other: most mutants are noticed by the first few."""
    return [case for first in range(apart) for case in calls[first::apart]]
