"""The kernels in Numba, bit for bit those of `reference.py` and near memcpy in speed.

What makes them vectorize: every loop has unit stride over a tile that stays in L1; 32-bit
arithmetic goes through intrinsics, since Numba widens uint32 products to 64 bits; the maximum is
taken over the bit patterns, as integers. Calls release the GIL, and `set_num_threads` spreads
the blocks of a large vector over a small pool of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload
from torch import Tensor

from gradwire.codec import Key
from gradwire.kernels.layout import MIN_SCALE, TILE, packed_nbytes

_I8, _I32, _I64, _F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_NORMS = {None: 0, "max": 1, "l2": 2}
_PIECE = 1 << 16
"""Vectors below two pieces of this many values are not worth a second thread."""


class _Threads:
    """The pool that large calls are spread over; none at the start."""

    count = 1
    pool: ThreadPoolExecutor | None = None


def set_num_threads(count: int) -> None:
    """Let each kernel call use up to `count` threads (1 at the start)."""
    if count < 1:
        raise ValueError(f"the number of codec threads must be at least 1, got {count}.")
    _Threads.count = count
    _Threads.pool = ThreadPoolExecutor(count, "gradwire-kernel") if count > 1 else None


def get_num_threads() -> int:
    """How many threads a kernel call may use."""
    return _Threads.count


def _intrinsic(result: Any, arguments: tuple[Any, ...], build: Callable[..., Any]) -> Any:
    """A function of one LLVM expression, `build(builder, *values)`, with exact types."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, *values)

    if len(arguments) == 1:

        def typer1(typingctx: Any, a: Any) -> Any:
            return result(*arguments), codegen

        return intrinsic(typer1)
    if len(arguments) == 2:

        def typer2(typingctx: Any, a: Any, b: Any) -> Any:
            return result(*arguments), codegen

        return intrinsic(typer2)

    def typer3(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
        return result(*arguments), codegen

    return intrinsic(typer3)


def _build_mulhi(builder: Any, a: Any, b: Any) -> Any:
    product = builder.mul(builder.zext(a, _I64), builder.zext(b, _I64))
    return builder.trunc(builder.lshr(product, _I64(32)), _I32)


def _build_nearest(builder: Any, a: Any) -> Any:
    kind = ir.FunctionType(_I32, [_F32])
    lrint = builder.module.declare_intrinsic("llvm.lrint", [_I32, _F32], kind)
    return builder.call(lrint, [a])


def _build_floor(builder: Any, scaled: Any, bias: Any, dither: Any) -> Any:
    total = builder.add(builder.add(scaled, bias), builder.zext(dither, _I32))
    return builder.trunc(builder.lshr(total, _I32(16)), _I8)


def _build_clip(builder: Any, a: Any, top: Any) -> Any:
    bottom = builder.fneg(top)
    a = builder.select(builder.fcmp_ordered("<", a, top), a, top)
    return builder.select(builder.fcmp_ordered(">", a, bottom), a, bottom)


def _build_level(builder: Any, code: Any, levels: Any) -> Any:
    return builder.sitofp(builder.sub(builder.zext(code, _I32), levels), _F32)


_u8, _u16, _u32, _i32, _f32 = types.uint8, types.uint16, types.uint32, types.int32, types.float32
_add = _intrinsic(_u32, (_u32, _u32), lambda b, x, y: b.add(x, y))
_mul = _intrinsic(_u32, (_u32, _u32), lambda b, x, y: b.mul(x, y))
_xor = _intrinsic(_u32, (_u32, _u32), lambda b, x, y: b.xor(x, y))
_mulhi = _intrinsic(_u32, (_u32, _u32), _build_mulhi)
_magnitude_bits = _intrinsic(_i32, (_i32,), lambda b, x: b.and_(x, _I32(0x7FFFFFFF)))
_as_float = _intrinsic(_f32, (_i32,), lambda b, x: b.bitcast(x, _F32))
_as_bits = _intrinsic(_i32, (_f32,), lambda b, x: b.bitcast(x, _I32))
_nearest = _intrinsic(_i32, (_f32,), _build_nearest)
_clip = _intrinsic(_f32, (_f32, _f32), _build_clip)
_floor = _intrinsic(_u8, (_i32, _i32, _u16), _build_floor)
_level = _intrinsic(_f32, (_u8, _i32), _build_level)
_or = _intrinsic(_u8, (_u8, _u8), lambda b, x, y: b.or_(x, y))
_and = _intrinsic(_u8, (_u8, _u8), lambda b, x, y: b.and_(x, y))
_shl = _intrinsic(_u8, (_u8, _u8), lambda b, x, y: b.shl(x, y))
_shr = _intrinsic(_u8, (_u8, _u8), lambda b, x, y: b.lshr(x, y))
_widen_bf16 = _intrinsic(_i32, (_u16,), lambda b, x: b.shl(b.zext(x, _I32), _I32(16)))
_widen_fp16 = _intrinsic(_i32, (types.int16,), lambda b, x: b.zext(x, _I32))

_jit = njit(nogil=True, cache=True)
_inline = njit(nogil=True, inline="always")

_INF_BITS = np.int32(0x7F800000)
_NAN = np.float32(np.nan)
_TINY = np.float32(MIN_SCALE)


@_inline
def _philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Philox-4x32-10."""
    for _ in range(10):
        high0, low0 = _mulhi(np.uint32(0xD2511F53), c0), _mul(np.uint32(0xD2511F53), c0)
        high1, low1 = _mulhi(np.uint32(0xCD9E8D57), c2), _mul(np.uint32(0xCD9E8D57), c2)
        c0, c1 = _xor(_xor(high1, c1), k0), low1
        c2, c3 = _xor(_xor(high0, c3), k1), low0
        k0, k1 = _add(k0, np.uint32(0x9E3779B9)), _add(k1, np.uint32(0xBB67AE85))
    return c0, c1, c2, c3


@_jit
def _random_tile(words, size, base, key):  # type: ignore[no-untyped-def]
    """Four planes of Philox words for a tile; `words` as 16-bit halves has one for each value."""
    stride = size // 8
    c1, c2, c3, k0, k1 = key
    for j in range(stride):
        a, b, c, d = _philox(_add(base, np.uint32(j)), c1, c2, c3, k0, k1)
        words[j] = a
        words[stride + j] = b
        words[2 * stride + j] = c
        words[3 * stride + j] = d


def _widen(x: Any, start: int, stop: int, tile: Any) -> None:
    """Copy x[start:stop] to `tile` as float32 and fill the rest with zeros."""


@overload(_widen)
def _widen_for(x, start, stop, tile):  # type: ignore[no-untyped-def]
    """By the type of `x`: float32 as it is, uint16 holds bfloat16, int16 holds float16."""
    if x.dtype == types.float32:

        def widen(x, start, stop, tile):  # type: ignore[no-untyped-def]
            source = x[start:stop]
            for i in range(stop - start):
                tile[i] = source[i]
            tile[stop - start :] = np.float32(0)

    elif x.dtype == types.uint16:

        def widen(x, start, stop, tile):  # type: ignore[no-untyped-def]
            source = x[start:stop]
            for i in range(stop - start):
                tile[i] = _as_float(_widen_bf16(source[i]))
            tile[stop - start :] = np.float32(0)

    else:

        def widen(x, start, stop, tile):  # type: ignore[no-untyped-def]
            # s eeeee mmmmmmmmmm: shift into a float32's place, then mend the exponent's bias by a
            # product, which also makes subnormals normal. Exponent 31 is inf or NaN.
            source = x[start:stop]
            for i in range(stop - start):
                half = _widen_fp16(source[i])
                body = (half & np.int32(0x7FFF)) << np.int32(13)
                value = _as_bits(_as_float(np.int32(body)) * np.float32(2.0**112))
                special = np.int32(0x7F800000) if body >= np.int32(0x0F800000) else np.int32(0)
                sign = (half & np.int32(0x8000)) << np.int32(16)
                tile[i] = _as_float(np.int32(value | special | sign))
            tile[stop - start :] = np.float32(0)

    return widen


@_jit
def _max_bits(tile):  # type: ignore[no-untyped-def]
    """The largest magnitude, as bits: inf and NaN come out on top."""
    bits = tile.view(np.int32)
    top = np.int32(0)
    for i in range(len(bits)):
        top = max(top, _magnitude_bits(bits[i]))
    return top


@_jit
def _tree_sum(values, size):  # type: ignore[no-untyped-def]
    """Sum of values[:size], size a power of two, by halves; they are overwritten."""
    while size > 1:
        size //= 2
        for i in range(size):
            values[i] += values[size + i]
    return values[0]


@_jit
def _sum_of_squares(part, squares):  # type: ignore[no-untyped-def]
    for i in range(len(part)):
        squares[i] = np.float64(part[i]) * np.float64(part[i])
    return _tree_sum(squares, len(part))


@_jit
def _scale(top, l2, square):  # type: ignore[no-untyped-def]
    """The scale of a block from the bits of its maximum, or from its sum of squares."""
    if top >= _INF_BITS:
        return _NAN
    scale = np.float32(np.sqrt(square)) if l2 else _as_float(np.int32(top))
    return max(scale, _TINY)


@_jit
def _scales_in_tile(tile, count, block, l2, scales, squares):  # type: ignore[no-untyped-def]
    """The scales of the blocks of one tile; `squares` is room to work in."""
    for b in range(-(-count // block)):
        part = tile[b * block : (b + 1) * block]
        square = _sum_of_squares(part, squares) if l2 else 0.0
        scales[b] = _scale(_max_bits(part), l2, square)


@_jit
def _scale_of_tiles(x, start, stop, l2, tile):  # type: ignore[no-untyped-def]
    """The scale of one block of several tiles."""
    squares = np.empty(TILE, np.float64)
    size = 1
    while size < -(-(stop - start) // TILE):
        size *= 2
    sums = np.zeros(size, np.float64)
    top = np.int32(0)
    for t in range(-(-(stop - start) // TILE)):
        at = start + t * TILE
        _widen(x, at, min(at + TILE, stop), tile)
        top = max(top, _max_bits(tile))
        if l2:
            sums[t] = _sum_of_squares(tile, squares)
    return _scale(top, l2, _tree_sum(sums, size) if l2 else 0.0)


@_jit
def _block_scales(x, scales, block, norm):  # type: ignore[no-untyped-def]
    tile, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    if block > TILE:
        for b in range(len(scales)):
            stop = min((b + 1) * block, len(x))
            scales[b] = _scale_of_tiles(x, b * block, stop, norm == 2, tile)
        return
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        _widen(x, at, stop, tile)
        _scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)


@_jit
def _round_block(values, dither, codes, scale, levels):  # type: ignore[no-untyped-def]
    """The scaled value to 16 fraction bits, plus 16 random ones, floored."""
    if np.isnan(scale):
        codes[:] = 0
        return
    top, bias = np.float32(levels << 16), np.int32(levels << 16)
    factor = top / scale
    for i in range(len(values)):
        codes[i] = _floor(_nearest(_clip(values[i] * factor, top)), bias, dither[i])


@_jit
def _pack_tile(codes, size, width, packed):  # type: ignore[no-untyped-def]
    """Field by field, see `layout.py`."""
    start, shift = 0, np.uint8(0)
    for bits in (8, 4, 2, 1):
        if width & bits:
            mask = np.uint8((1 << bits) - 1)
            stride = size * bits // 8
            out = packed[start : start + stride]
            for k in range(stride):
                out[k] = _and(_shr(codes[k], shift), mask)
            for m in range(1, 8 // bits):
                part = codes[m * stride : (m + 1) * stride]
                place = np.uint8(bits * m)
                for k in range(stride):
                    out[k] = _or(out[k], _shl(_and(_shr(part[k], shift), mask), place))
            start += stride
            shift = np.uint8(shift + bits)


@_jit
def _unpack_tile(packed, size, width, codes):  # type: ignore[no-untyped-def]
    """The inverse of `_pack_tile`."""
    start, shift = 0, np.uint8(0)
    for bits in (8, 4, 2, 1):
        if width & bits:
            mask = np.uint8((1 << bits) - 1)
            stride = size * bits // 8
            source = packed[start : start + stride]
            for m in range(8 // bits):
                part = codes[m * stride : (m + 1) * stride]
                place = np.uint8(bits * m)
                if shift == 0:
                    for k in range(stride):
                        part[k] = _and(_shr(source[k], place), mask)
                else:
                    for k in range(stride):
                        part[k] = _or(part[k], _shl(_and(_shr(source[k], place), mask), shift))
            start += stride
            shift = np.uint8(shift + bits)


@_jit
def _quantize(x, scales, packed, levels, width, block, norm, key, counter):  # type: ignore[no-untyped-def]
    tile, squares = np.empty(TILE, np.float32), np.empty(TILE, np.float64)
    words = np.empty(TILE // 2, np.uint32)
    dither = words.view(np.uint16)
    codes = np.empty(TILE, np.uint8)
    span = min(block, TILE)
    for at in range(0, len(x), TILE):
        stop = min(at + TILE, len(x))
        if norm and block > TILE and at % block == 0:
            end = min(at + block, len(x))
            scales[at // block] = _scale_of_tiles(x, at, end, norm == 2, tile)
        _widen(x, at, stop, tile)
        if norm and block <= TILE:
            _scales_in_tile(tile, stop - at, block, norm == 2, scales[at // block :], squares)
        size = -(-(stop - at) // 8) * 8
        _random_tile(words, size, np.uint32(counter + at // 8), key)
        for a in range(0, size, span):
            b = min(a + span, size)
            _round_block(tile[a:b], dither[a:b], codes[a:b], scales[(at + a) // block], levels)
        _pack_tile(codes, size, width, packed[at // 8 * width :])


@_jit
def _dequantize(scales, packed, out, levels, width, block, ratio, accumulate):  # type: ignore[no-untyped-def]
    codes = np.empty(TILE, np.uint8)
    span = min(block, TILE)
    zero = np.int32(levels)
    for at in range(0, len(out), TILE):
        count = min(TILE, len(out) - at)
        _unpack_tile(packed[at // 8 * width :], -(-count // 8) * 8, width, codes)
        for a in range(0, count, span):
            b = min(a + span, count)
            unit = scales[(at + a) // block] * ratio
            code, target = codes[a:b], out[at + a : at + b]
            if accumulate:
                for i in range(b - a):
                    target[i] += _level(code[i], zero) * unit
            else:
                for i in range(b - a):
                    target[i] = _level(code[i], zero) * unit


def _array(x: Tensor) -> Any:
    """The memory of `x` for Numba: bfloat16 as uint16, float16 as int16."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(np.uint16)
    return x.view(torch.int16).numpy() if x.dtype == torch.float16 else x.numpy()


def _key_words(key: Key) -> tuple[Any, ...]:
    return tuple(np.uint32(word) for word in key.words())


def philox(counter: Tensor, key: Key) -> Tensor:
    """See `reference.philox`; for tests, the other kernels make their random bits in place."""
    out = np.empty((4, counter.numel()), np.uint32)
    _philox_table(counter.to(torch.int64).numpy().reshape(-1), out, _key_words(key))
    return torch.from_numpy(out.astype(np.int64)).view(4, *counter.shape)


@_jit
def _philox_table(counter, out, key):  # type: ignore[no-untyped-def]
    c1, c2, c3, k0, k1 = key
    for j in range(len(counter)):
        a, b, c, d = _philox(np.uint32(counter[j]), c1, c2, c3, k0, k1)
        out[0, j], out[1, j], out[2, j], out[3, j] = a, b, c, d


def _spread(numel: int, block: int, run: Callable[[int, int], None]) -> None:
    """Call `run(first value, last)` once, or once per thread on spans of whole blocks and tiles."""
    grain = max(block, TILE)
    threads = min(_Threads.count, max(1, numel // max(grain, _PIECE)))
    if threads == 1 or _Threads.pool is None:
        run(0, numel)
        return
    grains = -(-numel // grain)
    cuts = [min(grains * i // threads * grain, numel) for i in range(threads + 1)]
    for task in [_Threads.pool.submit(run, a, b) for a, b in pairwise(cuts)]:
        task.result()


def block_scales(x: Tensor, scales: Tensor, *, block: int | None, norm: str) -> None:
    """See `reference.block_scales`."""
    values, out = _array(x), _array(scales)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        _block_scales(values[start:stop], out[start // size :], size, _NORMS[norm])

    _spread(x.numel(), size, run)


def quantize(
    x: Tensor,
    scales: Tensor,
    codes: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    norm: str | None,
    key: Key,
    offset: int = 0,
) -> None:
    """See `reference.quantize`. The norm of a block and its codes are one pass over memory."""
    values, scale, packed, words = _array(x), _array(scales), _array(codes), _key_words(key)
    size = block or max(x.numel(), TILE)

    def run(start: int, stop: int) -> None:
        part, part_scale = values[start:stop], scale[start // size :]
        part_packed, counter = packed[packed_nbytes(start, width) :], (offset + start) // 8
        _quantize(part, part_scale, part_packed, levels, width, size, _NORMS[norm], words, counter)

    _spread(x.numel(), size, run)


def dequantize(
    scales: Tensor,
    codes: Tensor,
    out: Tensor,
    *,
    levels: int,
    width: int,
    block: int | None,
    weight: float = 1.0,
    accumulate: bool = False,
) -> None:
    """See `reference.dequantize`."""
    scale, packed, values = _array(scales), _array(codes), _array(out)
    size, ratio = block or max(out.numel(), TILE), np.float32(weight / levels)

    def run(start: int, stop: int) -> None:
        part_scale, part_packed = scale[start // size :], packed[packed_nbytes(start, width) :]
        part = values[start:stop]
        _dequantize(part_scale, part_packed, part, levels, width, size, ratio, accumulate)

    _spread(out.numel(), size, run)


@_jit
def _omega(k):  # type: ignore[no-untyped-def]
    """Elias's recursive code of k >= 1, and its length: 48 bits at most for k below 2^36."""
    code, length = np.uint64(0), 1
    while k > 1:
        size = 1
        while k >> size:
            size += 1
        code |= np.uint64(k) << np.uint64(length)
        length += size
        k = size - 1
    return code, length


@_jit
def _omega_table(top):  # type: ignore[no-untyped-def]
    codes, lengths = np.zeros(top + 1, np.uint64), np.zeros(top + 1, np.int64)
    for k in range(1, top + 1):
        codes[k], lengths[k] = _omega(k)
    return codes, lengths


@_jit
def _elias_sizes(codes, levels):  # type: ignore[no-untyped-def]
    _, lengths = _omega_table(max(levels + 1, 1024))
    nonzeros = sparse = dense = 0
    last = -1
    for i in range(len(codes)):
        magnitude = abs(np.int64(codes[i]) - levels)
        dense += lengths[magnitude + 1]
        if magnitude:
            gap = i - last
            last = i
            nonzeros += 1
            sparse += lengths[magnitude] + (lengths[gap] if gap <= 1024 else _omega(gap)[1])
    return nonzeros, sparse + nonzeros, dense + nonzeros


@_jit
def _elias_encode(codes, out, levels, sparse):  # type: ignore[no-untyped-def]
    table, lengths = _omega_table(max(levels + 1, 1024))
    pending, count, at, last = np.uint64(0), 0, 0, -1
    for i in range(len(codes)):
        level = np.int64(codes[i]) - levels
        if sparse and level == 0:
            continue
        sign, magnitude = np.uint64(level < 0), abs(level)
        for part in range(2):
            if part == 0 and sparse:
                gap = i - last
                last = i
                code, length = (table[gap], lengths[gap]) if gap <= 1024 else _omega(gap)
            elif part == 0:
                code, length = table[magnitude + 1], lengths[magnitude + 1]
            elif sparse:
                code, length = table[magnitude], lengths[magnitude]
                code, length = code | sign << np.uint64(length), length + 1
            elif magnitude:
                code, length = sign, 1
            else:
                continue
            pending = pending << np.uint64(length) | code
            count += length
            while count >= 8:
                count -= 8
                out[at] = np.uint8((pending >> np.uint64(count)) & np.uint64(255))
                at += 1
    if count:
        out[at] = np.uint8((pending << np.uint64(8 - count)) & np.uint64(255))


@_jit
def _peek(stream, position):  # type: ignore[no-untyped-def]
    """At least 57 bits from bit `position` on, highest first; zeros beyond the end."""
    first = position >> 3
    window = np.uint64(0)
    for i in range(8):
        octet = np.uint64(stream[first + i]) if first + i < len(stream) else np.uint64(0)
        window = window << np.uint64(8) | octet
    return window << np.uint64(position & 7)


@_jit
def _read_omega(window):  # type: ignore[no-untyped-def]
    """The number at the head of `window` and its bits; (0, 0) if it is longer than any of ours."""
    value, used = np.int64(1), np.int64(0)
    while window >> np.uint64(63):
        size = value + 1
        if used + size > 48:
            return 0, 0
        value = np.int64(window >> np.uint64(64 - size))
        window <<= np.uint64(size)
        used += size
    return value, used + 1


@_jit
def _elias_decode(stream, codes, levels, sparse, nonzeros):  # type: ignore[no-untyped-def]
    codes[:] = levels
    position, index = np.int64(0), np.int64(-1)
    for i in range(nonzeros if sparse else len(codes)):
        number, used = _read_omega(_peek(stream, position))
        position += used
        if used == 0 or position > 8 * len(stream):
            return False
        if sparse:
            index += number
            window = _peek(stream, position)
            negative = window >> np.uint64(63)
            magnitude, used = _read_omega(window << np.uint64(1))
            if used == 0:
                return False
            position += used + 1
        else:
            index, magnitude, negative = np.int64(i), number - 1, np.uint64(0)
            if magnitude:
                negative = _peek(stream, position) >> np.uint64(63)
                position += 1
        if magnitude > levels or index >= len(codes):
            return False
        codes[index] = np.uint8(levels - magnitude if negative else levels + magnitude)
    rest = 8 * len(stream) - position
    return 0 <= rest < 8 and _peek(stream, position) == 0


def elias_sizes(codes: Tensor, *, levels: int) -> tuple[int, int, int]:
    """See `reference.elias_sizes`."""
    nonzeros, sparse, dense = _elias_sizes(_array(codes), levels)
    return int(nonzeros), int(sparse), int(dense)


def elias_encode(codes: Tensor, out: Tensor, *, levels: int, sparse: bool) -> None:
    """See `reference.elias_encode`."""
    _elias_encode(_array(codes), _array(out), levels, sparse)


def elias_decode(
    stream: Tensor, codes: Tensor, *, levels: int, sparse: bool, nonzeros: int
) -> bool:
    """See `reference.elias_decode`."""
    return bool(_elias_decode(_array(stream), _array(codes), levels, sparse, nonzeros))
