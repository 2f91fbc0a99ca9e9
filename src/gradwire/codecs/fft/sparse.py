"""How the kept coefficients of a vector travel: a header, their values, and where they are.

    header    kept (int64), bytes of the places (int64), base (int32), and four bytes:
              domain, form of the places, rice, whether blocks are spoilt; little-endian
    values    range floats of `bits` bits (`kernels/formats/rangefloat.py`); float32 if that is None
    spoilt    a bit for each block that was not finite, only if there is one
    places    nothing if all are kept, a bitmap, or gaps in Rice's code, whichever is shortest,
              see `kernels/protocol/sparse.py`

With `wire="zstd"`, all but the header is one zstd frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradwire import kernels, scratch
from gradwire.codecs.coding import compress, decompress
from gradwire.codecs.gaps import (
    MAX_RICE,
    best_rice,
    bitmap_nbytes,
    read_gaps,
    scratch_bytes,
    write_gaps,
)
from gradwire.codecs.settings import check_size, sizes_up_to
from gradwire.kernels.formats.layout import TILE, packed_nbytes
from gradwire.kernels.formats.rangefloat import fitted_base, is_base

_HEADER = struct.Struct("<qqiBBBB")
_PIECE = 1 << 16
"""Coefficients that are decoded at a time, unless eight blocks, which kernels want, are more."""
_PLACES = ("places", "bitmap", "gaps")
_ALL, _BITMAP, _GAPS = range(3)
_NOT_FINITE = 0x7F800000


class _Head(NamedTuple):
    """The header of a payload."""

    kept: int
    places_nbytes: int
    base: int
    domain: int
    form: int
    rice: int
    spoilt: int


@dataclass(frozen=True)
class SparseCoding:
    """The payloads of vectors cut into blocks of `block` values."""

    bits: int | None
    mantissa: int
    block: int
    zstd: bool

    def max_nbytes(self, numel: int, kept: int) -> int:
        """A bound on the size of a payload with up to `kept` coefficients."""
        most = self._values_nbytes(kept) + self._spoilt_nbytes(numel) + bitmap_nbytes(numel)
        return _HEADER.size + most + (most // 128 + 1024 if self.zstd else 0)

    def encode(self, coefficients: Tensor, kept: int, domain: int, out: Tensor) -> int:
        """Write the `kept` largest coefficients to `out`; `coefficients` is overwritten."""
        kernel, numel = kernels.for_device(coefficients.device), coefficients.numel()
        spoilt = coefficients.new_empty(0, dtype=torch.uint8)
        if (largest := kernel.largest(coefficients)) >= _NOT_FINITE:
            spoilt = self._spoil(coefficients)
            largest = kernel.largest(coefficients)
        values, bitmap = self._select(coefficients, kept)
        most = self.max_nbytes(numel, kept) - _HEADER.size
        body = scratch_bytes("body", most, out.device) if self.zstd else out[_HEADER.size :]
        base, at = 0, self._values_nbytes(kept)
        if self.bits is None:
            body[:at] = values.view(torch.uint8)
        else:
            base = fitted_base(largest, bits=self.bits, mantissa=self.mantissa)
            options = {"bits": self.bits, "mantissa": self.mantissa, "base": base}
            kernel.range_float_encode(values, body[:at], **options)
        body[at : at + spoilt.numel()] = spoilt
        at += spoilt.numel()
        form, rice, nbytes = _put_places(bitmap, kept, body[at:])
        header = _HEADER.pack(kept, nbytes, base, domain, form, rice, spoilt.numel() > 0)
        out[: _HEADER.size] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        if not self.zstd:
            return _HEADER.size + at + nbytes
        frame = compress(body[: at + nbytes])
        out[_HEADER.size :][: frame.numel()] = frame
        return _HEADER.size + frame.numel()

    def _select(self, coefficients: Tensor, kept: int) -> tuple[Tensor, Tensor | None]:
        """The largest, in order, moved to the front, and where they were; None if all are."""
        numel, device = coefficients.numel(), coefficients.device
        if kept == numel:
            return coefficients, None
        kernel = kernels.for_device(device)
        threshold, stop = kernel.find_threshold(coefficients, kept)
        values, bitmap = coefficients[:kept], scratch_bytes("bitmap", bitmap_nbytes(numel), device)
        kernel.compact(coefficients, bitmap, values, threshold=threshold, stop=stop)
        return values, bitmap

    def read(self, payload: Tensor, numel: int) -> Kept:
        """What a payload of `numel` coefficients says; ValueError if it is not whole."""
        head = self._head(payload, numel)
        sizes = list(self._sizes(head, numel).values())
        body = payload[_HEADER.size :]
        if self.zstd:
            body = decompress(body, sum(sizes))
        check_size(body, sum(sizes))
        codes, flags, index = torch.split(body, sizes)
        return Kept(
            self, numel, head.kept, head.base, head.domain, head.form, head.rice,
            codes, flags, index,
        )  # fmt: skip

    def domain(self, payload: Tensor, numel: int) -> int:
        """The number of the domain that a payload names."""
        return self._head(payload, numel).domain

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """The bytes of each part; of what zstd has compressed no parts are told apart."""
        head = self._head(payload, numel)
        if self.zstd:
            return sizes_up_to("frame", payload, head=_HEADER.size)
        sizes = self._sizes(head, numel)
        check_size(payload, _HEADER.size + sum(sizes.values()))
        return {"head": _HEADER.size, **{name: size for name, size in sizes.items() if size}}

    def _head(self, payload: Tensor, numel: int) -> _Head:
        if payload.numel() < _HEADER.size:
            raise ValueError(
                f"the payload has {payload.numel()} bytes, expected {_HEADER.size} or more."
            )
        head = _Head(*_HEADER.unpack(payload[: _HEADER.size].numpy().tobytes()))
        most = bitmap_nbytes(numel)
        if not (min(numel, 1) <= head.kept <= numel and 0 <= head.places_nbytes <= most):
            raise ValueError("the header promises more coefficients than there are.")
        bits, mantissa = self.bits, self.mantissa
        if bits is not None and not is_base(head.base, bits=bits, mantissa=mantissa):
            raise ValueError("the header is damaged: its range is not one of finite values.")
        if head.domain > 2 or head.form > _GAPS or head.rice > MAX_RICE or head.spoilt > 1:
            raise ValueError("the header is damaged: it names no domain or form that there is.")
        return head

    def _sizes(self, head: _Head, numel: int) -> dict[str, int]:
        """The parts after the header and their bytes."""
        return {
            "coefficients": self._values_nbytes(head.kept),
            "spoilt": self._spoilt_nbytes(numel) if head.spoilt else 0,
            _PLACES[head.form]: head.places_nbytes,
        }

    def _spoil(self, coefficients: Tensor) -> Tensor:
        """Zero the blocks that are not finite; a bit for each."""
        finite = [bool(part.isfinite().all()) for part in torch.split(coefficients, self.block)]
        spoilt = ~torch.tensor(finite)
        coefficients[self._in_blocks(spoilt, coefficients.numel())] = 0.0
        return torch.from_numpy(np.packbits(spoilt.numpy(), bitorder="little"))

    def _in_blocks(self, blocks: Tensor, numel: int) -> Tensor:
        """A flag for every coefficient from one for every block."""
        return blocks.repeat_interleave(self.block)[:numel]

    def _values_nbytes(self, kept: int) -> int:
        return 4 * kept if self.bits is None else packed_nbytes(kept, self.bits)

    def _spoilt_nbytes(self, numel: int) -> int:
        return -(-numel // self.block // 8)


@dataclass(frozen=True)
class Kept:
    """The coefficients of one payload."""

    coding: SparseCoding
    numel: int
    kept: int
    base: int
    domain: int
    form: int
    rice: int
    codes: Tensor
    spoilt: Tensor
    places: Tensor

    def add_to(self, coefficients: Tensor) -> None:
        """Add them to `coefficients`; those of a spoilt block become NaN."""
        for start, stop, add in self.pieces():
            add(coefficients[start:stop])

    def pieces(self) -> Iterator[tuple[int, int, Callable[[Tensor], None]]]:
        """(first, last, a function that adds those in between to what it is given), in order."""
        bitmap = self._bitmap() if self.form != _ALL else None
        if bitmap is None and (self.kept != self.numel or self.places.numel()):
            raise ValueError("the header is damaged: it does not keep all, yet says no places.")
        kernel, done = kernels.for_device(self.codes.device), 0
        size = max(_PIECE, 8 * self.coding.block)
        for start in range(0, self.numel, size):
            stop = min(start + size, self.numel)
            part = None if bitmap is None else bitmap[start // 8 : bitmap_nbytes(stop)]
            count = stop - start if part is None else kernel.count_bits(part)
            yield start, stop, partial(self._add, part, self._values(done, count), start)
            done += count

    def _add(self, bitmap: Tensor | None, values: Tensor, start: int, out: Tensor) -> None:
        if bitmap is None:
            out += values
        else:
            kernels.for_device(out.device).expand(bitmap, values, out)
        if self.spoilt.numel():
            block = self.coding.block
            first, last = start // block, -(-(start + out.numel()) // block)
            flags = np.unpackbits(
                self.spoilt[first // 8 : -(-last // 8)].numpy(), bitorder="little"
            )
            blocks = torch.from_numpy(flags[first % 8 :][: last - first]).bool()
            out[self.coding._in_blocks(blocks, out.numel())] = torch.nan

    def _values(self, start: int, count: int) -> Tensor:
        """Those from `start` on; codes are packed in tiles, so whole tiles are decoded."""
        bits, device = self.coding.bits, self.codes.device
        if bits is None:  # the message may have them unaligned
            return self.codes[4 * start : 4 * (start + count)].clone().view(torch.float32)
        first, last = start // TILE * TILE, min(self.kept, -(-(start + count) // TILE) * TILE)
        values = scratch.of_thread().take("values", last - first, torch.float32, device)
        codes = self.codes[packed_nbytes(first, bits) : packed_nbytes(last, bits)]
        options = {"bits": bits, "mantissa": self.coding.mantissa, "base": self.base}
        kernels.for_device(device).range_float_decode(codes, values, **options)
        return values[start - first :][:count]

    def _bitmap(self) -> Tensor:
        """Where they are; checked, so that nothing is read or written out of bounds."""
        kernel, device = kernels.for_device(self.places.device), self.places.device
        bitmap = scratch_bytes("bitmap", bitmap_nbytes(self.numel), device)
        if self.form == _BITMAP:
            check_size(self.places, bitmap.numel())
            bitmap.copy_(self.places)
            last = np.unpackbits(bitmap[-8:].numpy(), bitorder="little")
            beyond = last[self.numel - 8 * bitmap.numel() + 64 :].any()
            whole = kernel.count_bits(bitmap) == self.kept and not beyond
        else:
            options = {"kept": self.kept, "rice": self.rice, "numel": self.numel}
            whole = read_gaps(self.places, bitmap, **options)
        if not whole:
            raise ValueError("the places are damaged: they are not as many as the header promises.")
        return bitmap


def _put_places(bitmap: Tensor | None, kept: int, out: Tensor) -> tuple[int, int, int]:
    """Write where coefficients are in the shortest way: its form, its `rice`, and its bytes."""
    if bitmap is None:
        return _ALL, 0, 0
    rice, size = best_rice(bitmap, kept)
    if size >= bitmap.numel():
        out[: bitmap.numel()] = bitmap
        return _BITMAP, 0, bitmap.numel()
    write_gaps(bitmap, kept, rice, out[:size])
    return _GAPS, rice, size
