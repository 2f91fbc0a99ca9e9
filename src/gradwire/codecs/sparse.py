"""How the kept coefficients of a vector travel: a header, their values, and where they are.

    header    kept (int64), bytes of the places (int64), base (int32), and four bytes:
              domain, form of the places, rice, whether blocks are spoilt; little-endian
    values    range floats of `bits` bits, see `kernels/rangefloat.py`; float32 if `bits` is None
    spoilt    a bit for each block that was not finite, only if there is one
    places    nothing if all are kept, a bitmap, or gaps in Rice's code, whichever is shortest,
              see `kernels/reference_sparse.py`

With `wire="zstd"`, all but the header is one zstd frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import check_size, sizes_up_to
from gradwire.codecs.rooms import room
from gradwire.codecs.wires import compress, decompress
from gradwire.kernels.layout import packed_nbytes
from gradwire.kernels.rangefloat import fitted_base, is_base

_HEADER = struct.Struct("<qqiBBBB")
_PLACES = ("places", "bitmap", "gaps")
_ALL, _BITMAP, _GAPS = range(3)
_NOT_FINITE = 0x7F800000


@dataclass(frozen=True)
class Places:
    """Which coefficients are kept: `form`, its `rice` if it has one, and the bytes that say so."""

    form: int
    rice: int
    parts: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.numel() for part in self.parts)


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
class SparseWire:
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
        """Write the `kept` largest coefficients to `out`; blocks not finite are zeroed first."""
        kernel = kernels.select(coefficients.device)
        spoilt = coefficients.new_empty(0, dtype=torch.uint8)
        if (largest := kernel.largest(coefficients)) >= _NOT_FINITE:
            spoilt = self._spoil(coefficients)
            largest = kernel.largest(coefficients)
        values, places = self._select(coefficients, kept)
        base, codes = 0, values.view(torch.uint8)
        if self.bits is not None:
            base = fitted_base(largest, bits=self.bits, mantissa=self.mantissa)
            codes = _bytes("codes", self._values_nbytes(kept), out.device)
            options = {"bits": self.bits, "mantissa": self.mantissa, "base": base}
            kernel.range_float_encode(values, codes, **options)
        header = _HEADER.pack(
            kept, places.nbytes, base, domain, places.form, places.rice, spoilt.numel() > 0
        )
        return self._write(out, header, codes, spoilt, *places.parts)

    def _select(self, coefficients: Tensor, kept: int) -> tuple[Tensor, Places]:
        """The largest coefficients, in order, and where they are."""
        numel, device = coefficients.numel(), coefficients.device
        if kept == numel:
            return coefficients, Places(_ALL, 0, ())
        kernel = kernels.select(device)
        threshold, stop = kernel.select(coefficients, kept)
        values = room("values", kept, torch.float32, device)
        bitmap = _bytes("bitmap", bitmap_nbytes(numel), device)
        kernel.compact(coefficients, bitmap, values, threshold=threshold, stop=stop)
        return values, self._shortest(bitmap, kept)

    def _shortest(self, bitmap: Tensor, kept: int) -> Places:
        kernel = kernels.select(bitmap.device)
        unary_bits = kernel.gap_sizes(bitmap)
        sizes = [
            packed_nbytes(kept, rice) + bitmap_nbytes(unary)
            for rice, unary in enumerate(unary_bits)
        ]
        rice = sizes.index(min(sizes))
        if sizes[rice] >= bitmap.numel():
            return Places(_BITMAP, 0, (bitmap,))
        low = _bytes("low", packed_nbytes(kept, rice), bitmap.device)
        unary = _bytes("unary", bitmap_nbytes(unary_bits[rice]), bitmap.device)
        kernel.gap_encode(bitmap, low, unary, rice=rice)
        return Places(_GAPS, rice, (low, unary))

    def _write(self, out: Tensor, header: bytes, *parts: Tensor) -> int:
        out[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        size = sum(part.numel() for part in parts)
        if self.zstd:
            frame = compress(torch.cat(parts, out=_bytes("body", size, out.device)))
            out[len(header) :][: frame.numel()] = frame
            return len(header) + frame.numel()
        torch.cat(parts, out=out[len(header) : len(header) + size])
        return len(header) + size

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

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """See `Codec.anatomy`; of what zstd has compressed no parts are told apart."""
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
        if head.domain > 2 or head.form > _GAPS or head.rice > 15 or head.spoilt > 1:
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

    wire: SparseWire
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
        values = self._values()
        if self.form == _ALL:
            if self.kept != self.numel or self.places.numel():
                raise ValueError("the header is damaged: it does not keep all, yet says no places.")
            coefficients += values
        else:
            kernels.select(values.device).expand(self._bitmap(), values, coefficients)
        if self.spoilt.numel():
            flags = np.unpackbits(self.spoilt.numpy(), bitorder="little")
            blocks = torch.from_numpy(flags[: -(-self.numel // self.wire.block)]).bool()
            coefficients[self.wire._in_blocks(blocks, self.numel)] = torch.nan

    def _values(self) -> Tensor:
        if self.wire.bits is None:
            return self.codes.clone().view(torch.float32)  # the message may have it unaligned
        values = room("values", self.kept, torch.float32, self.codes.device)
        options = {"bits": self.wire.bits, "mantissa": self.wire.mantissa, "base": self.base}
        kernels.select(values.device).range_float_decode(self.codes, values, **options)
        return values

    def _bitmap(self) -> Tensor:
        """Where they are; checked, so that nothing is read or written out of bounds."""
        kernel, device = kernels.select(self.places.device), self.places.device
        bitmap = _bytes("bitmap", bitmap_nbytes(self.numel), device)
        if self.form == _BITMAP:
            check_size(self.places, bitmap.numel())
            bitmap.copy_(self.places)
            last = np.unpackbits(bitmap[-8:].numpy(), bitorder="little")
            beyond = last[self.numel - 8 * bitmap.numel() + 64 :].any()
            whole = kernel.count_bits(bitmap) == self.kept and not beyond
        else:
            whole = self._from_gaps(bitmap)
        if not whole:
            raise ValueError("the places are damaged: they are not as many as the header promises.")
        return bitmap

    def _from_gaps(self, bitmap: Tensor) -> bool:
        low_nbytes = packed_nbytes(self.kept, self.rice)
        low, rest = self.places[:low_nbytes], self.places[low_nbytes:]
        if low.numel() < low_nbytes or rest.numel() % 8:
            return False
        unary = _bytes("unary", rest.numel(), rest.device).copy_(rest)
        options = {"rice": self.rice, "count": self.kept, "numel": self.numel}
        return bool(kernels.select(bitmap.device).gap_decode(low, unary, bitmap, **options))


def bitmap_nbytes(numel: int) -> int:
    """Bytes of a bitmap of `numel` bits: whole words of 64."""
    return 8 * -(-numel // 64)


def _bytes(name: str, nbytes: int, device: torch.device) -> Tensor:
    return room(name, nbytes, torch.uint8, device)
