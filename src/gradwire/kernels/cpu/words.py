"""Signs and mantissas of floats in Numba, and which floats are +0."""

from __future__ import annotations

import numpy as np

from gradwire.kernels.cpu.compiler import jit
from gradwire.kernels.cpu.octets import load64, lowest_bit, reaching
from gradwire.kernels.cpu.pack import pack_tile, unpack_tile
from gradwire.kernels.cpu.patterns import copy, half, is_set, joined, octet, wipe, word_of
from gradwire.kernels.formats.lossless import bitmap_nbytes

whole_bitmap_nbytes = jit(bitmap_nbytes)


@jit
def put_words(x, mantissa, low, width, digits, body):  # type: ignore[no-untyped-def]
    at, shift, number = 0, low, len(x)
    if width & 16:
        halves = body[: 2 * number].view(np.uint16)
        for i in range(number):
            halves[i] = half(word_of(x[i], mantissa), shift)
        at, shift = 2 * number, shift + 16
    if width & 8:
        octets = body[at : at + number]
        for i in range(number):
            octets[i] = octet(word_of(x[i], mantissa), shift)
        at, shift = at + number, shift + 8
    if width & 7:
        eighths = -(-number // 8)
        for i in range(number):
            digits[i] = octet(word_of(x[i], mantissa), shift)
        wipe(digits, number, 8 * eighths)
        pack_tile(digits, 8 * eighths, width & 7, body[at:])
        at += (width & 7) * eighths
    return at


@jit
def leave_out(x, flags, values, exponents, body):  # type: ignore[no-untyped-def]
    """Pick out the values that are not +0, and their exponents."""
    for i in range(len(x)):
        flags[i] = is_set(x[i])
    wipe(flags, len(x), -(-len(x) // 64) * 64)
    number, half = 0, np.uint64(0xFFFFFFFF)
    bitmap = body[: whole_bitmap_nbytes(len(x))].view(np.uint32)
    for first in range(0, len(x), 64):
        found = reaching(flags.ctypes.data + first, np.uint8(1))
        bitmap[first // 32] = found & half
        if first + 32 < len(x):
            bitmap[first // 32 + 1] = found >> np.uint64(32)
        while found:
            place = first + np.int64(lowest_bit(found))
            values[number], exponents[number] = x[place], exponents[place]
            number += 1
            found &= found - np.uint64(1)
    return number


@jit
def take_words(body, low, width, digits, out):  # type: ignore[no-untyped-def]
    """Words where patterns will be."""
    at, number, shift = 0, len(out), low
    wipe(out, 0, number)
    if width & 16:
        halves = body[: 2 * number].view(np.uint16)
        for i in range(number):
            out[i] = joined(out[i], halves[i], shift)
        at, shift = 2 * number, shift + 16
    if width & 8:
        octets = body[at : at + number]
        for i in range(number):
            out[i] = joined(out[i], octets[i], shift)
        at, shift = at + number, shift + 8
    if width & 7:
        unpack_tile(body[at:], -(-number // 8) * 8, width & 7, digits)
        for i in range(number):
            out[i] = joined(out[i], digits[i], shift)


@jit
def put_zeros(bits, values, bitmap, out):  # type: ignore[no-untyped-def]
    """Values to their places, and zeros between them; False if they are not as many."""
    numel, number = len(out), 0
    copy(bits, len(bits), bitmap)
    wipe(bitmap, len(bits), len(bitmap))
    wipe(out, 0, numel)
    for first in range(0, numel, 64):
        found = load64(bitmap.ctypes.data + first // 8)
        while found:
            place = first + np.int64(lowest_bit(found))
            if place >= numel:
                return False
            out[place] = values[number]
            number += 1
            found &= found - np.uint64(1)
    return number == len(values)
