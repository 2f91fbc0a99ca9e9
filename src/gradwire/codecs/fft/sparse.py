"""How the kept coefficients of a vector travel: a head, what they are, and where they are.

    head      `count` of a whole block (uint32), and four bytes: domain, form of the places, rice, 0
    codes     range floats or float32,    } see `kernels/formats/spectra.py`
    scales    those of the blocks         }
    places    nothing if all are kept, a bitmap, or gaps in Rice's code (`codecs/gaps.py`), where
              fewer than a quarter is kept and they are shorter

With `wire="zstd"`, all but the head is one zstd frame, whose places are never gaps.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire import kernels
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
from gradwire.kernels.formats.spectra import Form, Kept

_HEAD = struct.Struct("<IBBBB")
_PLACES = ("places", "bitmap", "gaps")
_ALL, _BITMAP, _GAPS = range(3)
_DAMAGED = "the payload is damaged: its places or its scales are none that an encoder writes."


class Spectrum(NamedTuple):
    """What a payload says, and the number of its domain."""

    domain: int
    form: Form
    kept: Kept


@dataclass(frozen=True)
class SparseCoding:
    """The payloads of vectors cut into blocks of `block` values."""

    bits: int | None
    mantissa: int
    block: int
    zstd: bool

    def form(self, count: int) -> Form:
        """What is kept if it is `count` of each block."""
        return Form(self.block, count, self.bits, self.mantissa)

    def has_gaps(self, count: int) -> bool:
        """Are gaps worth a try?"""
        return 4 * count < self.block and not self.zstd

    def max_nbytes(self, numel: int, count: int, *, always: bool) -> int:
        """A bound on the size of a payload that keeps up to `count` of a block.

        If it `always` keeps so many it is the size itself, but for gaps and zstd.
        """
        form = self.form(count)
        most = form.codes_nbytes(numel) + form.scales_nbytes(numel)
        if not always or count < self.block:
            most += bitmap_nbytes(numel)
        return _HEAD.size + most + (most // 128 + 1024 if self.zstd else 0)

    def encode(
        self,
        x: Tensor,
        others: Sequence[Spectrum],
        out: Tensor,
        *,
        domain: tuple[int, str],
        count: int,
        rest: Tensor | None = None,
    ) -> int:
        """Write what is kept of the mean of `x` and `others`; see `keep_spectra` for `rest`."""
        form, numel = self.form(count), x.numel()
        sizes = [form.codes_nbytes(numel), form.scales_nbytes(numel)]
        body = out[_HEAD.size :]
        if self.zstd:
            body = scratch_bytes("body", sum(sizes) + bitmap_nbytes(numel), out.device)
        codes, scales, places = torch.split(body, [*sizes, body.numel() - sum(sizes)])
        bitmap = places[: bitmap_nbytes(numel)]
        if count == self.block or self.has_gaps(count):
            bitmap = scratch_bytes("bitmap", bitmap_nbytes(numel), out.device)
        kept, kernel = Kept(scales, bitmap, codes), kernels.for_device(x.device)
        theirs = [other.kept for other in others]
        if not kernel.keep_spectra(x, theirs, kept, rest, domain=domain[1], form=form):
            raise ValueError(_DAMAGED)
        placed, rice, nbytes = self._put_places(bitmap, form, numel, places)
        head = _HEAD.pack(count, domain[0], placed, rice, 0)
        out[: _HEAD.size] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        if not self.zstd:
            return _HEAD.size + sum(sizes) + nbytes
        frame = compress(body[: sum(sizes) + nbytes])
        out[_HEAD.size :][: frame.numel()] = frame
        return _HEAD.size + frame.numel()

    def _put_places(
        self, bitmap: Tensor, form: Form, numel: int, out: Tensor
    ) -> tuple[int, int, int]:
        """Write where coefficients are; the form of that, its `rice`, and its bytes."""
        if form.count == self.block:
            return _ALL, 0, 0
        if self.has_gaps(form.count):
            kept = form.kept(numel)
            rice, size = best_rice(bitmap, kept)
            if size < bitmap.numel():
                write_gaps(bitmap, kept, rice, out[:size])
                return _GAPS, rice, size
            out[: bitmap.numel()] = bitmap
        return _BITMAP, 0, bitmap.numel()

    def read(self, payload: Tensor, numel: int, index: int = 0) -> Spectrum:
        """What a payload of `numel` coefficients says; ValueError if it is not whole.

        Those that are read with different `index` may be used together.
        """
        count, domain, placed, rice = self._head(payload)
        form, body = self.form(count), payload[_HEAD.size :]
        sizes = [form.codes_nbytes(numel), form.scales_nbytes(numel)]
        places_nbytes = 0 if placed == _ALL else bitmap_nbytes(numel)
        if self.zstd:
            body = decompress(body, sum(sizes) + places_nbytes).clone()
        if placed == _GAPS:
            places_nbytes = max(body.numel() - sum(sizes), 0)
        check_size(body, sum(sizes) + places_nbytes)
        codes, scales, places = torch.split(body, [*sizes, places_nbytes])
        if placed != _BITMAP:
            bitmap = scratch_bytes(f"bitmap{index}", bitmap_nbytes(numel), payload.device)
            if placed == _ALL:
                _fill(bitmap, numel)
            elif not read_gaps(places, bitmap, kept=form.kept(numel), rice=rice, numel=numel):
                raise ValueError(_DAMAGED)
            places = bitmap
        return Spectrum(domain, form, Kept(scales, places, codes))

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """The bytes of each part; of what zstd has compressed no parts are told apart."""
        count, _, placed, _ = self._head(payload)
        if self.zstd:
            return sizes_up_to("frame", payload, head=_HEAD.size)
        form = self.form(count)
        parts = {"head": _HEAD.size, "coefficients": form.codes_nbytes(numel)}
        sizes = sizes_up_to(_PLACES[placed], payload, **parts, scales=form.scales_nbytes(numel))
        return {name: size for name, size in sizes.items() if size}

    def _head(self, payload: Tensor) -> tuple[int, int, int, int]:
        """(count, domain, form of the places, rice)."""
        if payload.numel() < _HEAD.size:
            raise ValueError(
                f"the payload has {payload.numel()} bytes, expected {_HEAD.size} or more."
            )
        count, domain, placed, rice, zero = _HEAD.unpack(payload[: _HEAD.size].numpy().tobytes())
        if not 1 <= count <= self.block:
            raise ValueError("the head is damaged: it promises more coefficients than there are.")
        fits = (placed == _ALL) == (count == self.block) and placed <= _BITMAP + (not self.zstd)
        if domain > 2 or not fits or rice > (MAX_RICE if placed == _GAPS else 0) or zero:
            raise ValueError("the head is damaged: it names no domain or form that there is.")
        return count, domain, placed, rice


def add_spectra(
    spectra: Sequence[Spectrum], domain: str, out: Tensor, weight: float, accumulate: bool
) -> None:
    """Write, or add, the sum of `spectra`, all of one form and of `domain`, to `out`."""
    kernel, form = kernels.for_device(out.device), spectra[0].form
    kept = [spectrum.kept for spectrum in spectra]
    if not kernel.add_spectra(
        kept, out, domain=domain, form=form, weight=weight, accumulate=accumulate
    ):
        raise ValueError(_DAMAGED)


def _fill(bitmap: Tensor, numel: int) -> None:
    """A bit for each of `numel` coefficients."""
    bitmap[: numel // 8] = 255
    bitmap[numel // 8 :] = 0
    if numel % 8:
        bitmap[numel // 8] = (1 << numel % 8) - 1
