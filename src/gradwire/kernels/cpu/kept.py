"""What is kept of a strip of blocks, in Numba: written, and added to coefficients.

A strip stays in cache, and every loop runs over all of it where blocks do not matter: packing a few
codes at a time, or cutting arrays for each block, would take longer than all the rest.
"""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.largest import find_threshold, flag, largest_of
from gradwire.kernels.cpu.octets import lowest_bit
from gradwire.kernels.cpu.pack import pack_wide, unpack_wide
from gradwire.kernels.cpu.rangefloat import decode_floats, encode_floats, fit_base, is_base
from gradwire.kernels.cpu.sparse import gather_flags
from gradwire.kernels.formats.spectra import STRIP

_NOT_FINITE = 0x7F800000


@jit
def room_of(block):  # type: ignore[no-untyped-def]
    """(flags, words, values, codes, octets) of a strip, and the bases of its blocks."""
    size = STRIP * block
    words, values = np.zeros(-(-size // 64) + 1, np.uint64), np.zeros(size + 8, np.int32)
    codes, octets = np.zeros(size + 8, np.uint16), np.zeros(size + 8, np.uint8)
    return np.zeros(size, np.uint8), words, values, codes, octets, np.zeros(STRIP, np.int64)


@jit
def _place(first, form):  # type: ignore[no-untyped-def]
    """Where the codes of the strip that begins with coefficient `first` begin."""
    kept = first // form[0] * form[1]
    return kept // 8 * form[2] if form[2] else 4 * kept


@jit
def _count(size, form):  # type: ignore[no-untyped-def]
    """How many of a strip of `size` coefficients are kept."""
    return size // form[0] * form[1] + -(-(size % form[0]) * form[1] // form[0])


@jit
def _read_bases(scales, first, size, form, bases):  # type: ignore[no-untyped-def]
    """The scales of a strip; False if they are none that an encoder writes."""
    block, _, bits, shift, nbytes = form
    for i in range(-(-size // block)):
        base = np.int64(0)
        for b in range(nbytes):
            base |= np.int64(scales[(first // block + i) * nbytes + b]) << (8 * b)
        if base and not (is_base(base, bits, shift) if bits else base == 1):
            return False
        bases[i] = base
    return True


@jit
def _read_values(packed, count, form, bases, room):  # type: ignore[no-untyped-def]
    """The values of a strip, as bit patterns."""
    _, each, bits, shift, _ = form
    _, _, values, codes, octets, _ = room
    if not bits:
        target = values.view(np.uint8)
        for i in range(4 * count):
            target[i] = packed[i]
        return
    unpack_wide(packed, -(-count // 8) * 8, bits, codes, octets)
    for i in range(-(-count // each)):
        a, b = i * each, min((i + 1) * each, count)
        decode_floats(codes[a:b], values[a:b], bits, shift, max(bases[i], 1))


@jit
def _scatter(words, floats, count, c, block, each, off):  # type: ignore[no-untyped-def]
    """Add values to the coefficients that `words` name, or take them `off`; False if they are not
    `each` of a block."""
    unit, done = min(block, 64), 0
    mask = ~np.uint64(0) >> np.uint64(64 - unit)
    for at in range(0, 64 * len(words), unit):
        if at % block == 0 and done != min(at // block * each, count):
            return False
        word = (words[at >> 6] >> np.uint64(at & 63)) & mask
        while word:
            place = at + np.int64(lowest_bit(word))
            if done == count or place >= len(c):
                return False
            if off:
                c[place] -= np.float32(0) + floats[done]  # -0 counts as 0
            else:
                c[place] += floats[done]
            done += 1
            word &= word - np.uint64(1)
    return done == count


@jit
def add_strip(scales, bitmap, codes, form, first, last, room, c):  # type: ignore[no-untyped-def]
    """Add what is kept of the coefficients from `first` on to `c`; False if that is damaged.

    The `last` strip has what the bitmap is filled up with, too.
    """
    words, count, bases = room[1], _count(len(c), form), room[5]
    if not _read_bases(scales, first, len(c), form, bases):
        return False
    _read_values(codes[_place(first, form) :], count, form, bases, room)
    own = bitmap[first // 8 :] if last else bitmap[first // 8 : (first + len(c)) // 8]
    octets = words.view(np.uint8)
    for i in range(len(own)):
        octets[i] = own[i]
    used = words[: -(-len(own) // 8)]
    if not _scatter(used, room[2].view(np.float32), count, c, form[0], form[1], False):
        return False
    _spoil(c, form[0], bases)
    return True


@jit
def _spoil(c, block, bases):  # type: ignore[no-untyped-def]
    for i in range(-(-len(c) // block)):
        if bases[i] == 0:
            c[i * block : (i + 1) * block] = np.float32(np.nan)


@jit
def _choose(c, form, room, guess):  # type: ignore[no-untyped-def]
    """Flag the largest of every block and say their bases; the last threshold."""
    block, each, bits, shift, _ = form
    flags, bases = room[0], room[5]
    for i in range(-(-len(c) // block)):
        part = c[i * block : (i + 1) * block].view(np.int32)
        own, kept = flags[i * block : i * block + len(part)], -(-len(part) * each // block)
        top = largest_of(part)
        if top >= _NOT_FINITE:
            own[:] = np.uint8(0)
            own[:kept] = np.uint8(1)
            bases[i] = 0
            continue
        threshold, stop = np.int64(0), len(part)
        if kept < len(part):
            threshold, stop = find_threshold(part, kept, top, guess)
            guess = threshold
        flag(part, threshold, stop, own)
        bases[i] = fit_base(top, bits, shift) if bits else np.int64(1)
    return guess


@jit
def _collect(patterns, flags, found):  # type: ignore[no-untyped-def]
    """The flagged ones to the start of `found`, which has room for one more than all of them."""
    size = np.int64(0)
    for i in range(len(patterns)):  # no branch: which ones are flagged cannot be foretold
        found[size] = patterns[i]
        size += np.int64(flags[i])


@jit
def _write_codes(packed, count, form, room):  # type: ignore[no-untyped-def]
    """The values of a strip to codes; blocks that are not finite have zeros."""
    _, each, bits, shift, _ = form
    _, _, values, codes, octets, bases = room
    for i in range(-(-count // each)):
        a, b = i * each, min((i + 1) * each, count)
        if bases[i] == 0:
            values[a:b] = 0
        if bits:
            encode_floats(values[a:b], codes[a:b], bits, shift, max(bases[i], 1))
    if not bits:
        source = values.view(np.uint8)
        for i in range(4 * count):
            packed[i] = source[i]
        return
    size = -(-count // 8) * 8
    codes[count:size] = np.uint16(0)
    pack_wide(codes, size, bits, packed, octets)


@jit
def keep_strip(c, scales, bitmap, codes, form, first, room, leaves, guess):  # type: ignore[no-untyped-def]
    """Write what is kept of `c`, the coefficients from `first` on, and take it off if it `leaves`;
    the last threshold."""
    flags, words, bases = room[0], room[1], room[5]
    guess, count, size = _choose(c, form, room, guess), _count(len(c), form), -(-len(c) // 64) * 64
    flags[len(c) :] = np.uint8(0)
    octets, packed = words.view(np.uint8), codes[_place(first, form) :]
    gather_flags(flags[:size].view(np.uint64), octets[: size // 8])
    own = bitmap[first // 8 :]
    for i in range(-(-len(c) // 8)):
        own[i] = octets[i]
    _collect(c.view(np.int32), flags, room[2])
    _write_codes(packed, count, form, room)
    for i in range(-(-len(c) // form[0])):
        for b in range(form[4]):
            scales[(first // form[0] + i) * form[4] + b] = np.uint8((bases[i] >> (8 * b)) & 255)
    if leaves:
        _read_values(packed, count, form, bases, room)
        floats, used = room[2].view(np.float32), words[: size // 64]
        _scatter(used, floats, count, c, form[0], form[1], True)
        _spoil(c, form[0], bases)
    return guess
