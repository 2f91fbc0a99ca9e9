"""How the kept coefficients of a vector travel: a head, what they are, and where they are.

    head      `count` of a whole block (uint32), and four bytes: domain, form of the places, rice, 0
    codes     range floats or float32,    } see `kernels/formats/spectra.py`
    scales    those of the blocks         }
    places    nothing if all are kept, a bitmap, or gaps in Rice's code (`codecs/gaps.py`), where
              fewer than a quarter is kept and they are shorter

With `wire="zstd"`, all but the head is one zstd frame, whose places are never gaps.

On a GPU nothing of a payload is read by the host. There the head is the one that workers with the
same settings write. One that differs spoils all blocks, and damage its own: they become NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codecs.coding import compress, decompress
from gradwire.codecs.fft.head import (
    ALL,
    BITMAP,
    GAPS,
    HEAD_NBYTES,
    PLACES,
    Head,
    check_head_size,
    read_head,
)
from gradwire.codecs.gaps import (
    best_rice,
    bitmap_nbytes,
    read_gaps,
    scratch_bytes,
    write_gaps,
)
from gradwire.codecs.settings import check_size, sizes_up_to
from gradwire.kernels.formats.spectra import Form, Kept

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
        return HEAD_NBYTES + most + (most // 128 + 1024 if self.zstd else 0)

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
        body = out[HEAD_NBYTES:]
        if self.zstd:
            body = scratch_bytes("body", sum(sizes) + bitmap_nbytes(numel), out.device)
        codes, scales, places = torch.split(body, [*sizes, body.numel() - sum(sizes)])
        bitmap = places[: bitmap_nbytes(numel)]
        if count == self.block or self.has_gaps(count):
            bitmap = scratch_bytes("bitmap", bitmap_nbytes(numel), out.device)
        kept, kernel = Kept(scales, bitmap, codes), kernels.for_device(x.device)
        theirs = [other.kept for other in others]
        _check(kernel.keep_spectra(x, theirs, kept, rest, domain=domain[1], form=form))
        placed, rice, nbytes = self._put_places(bitmap, form, numel, places)
        Head(count, domain[0], placed, rice).write(out)
        if not self.zstd:
            return HEAD_NBYTES + sum(sizes) + nbytes
        frame = compress(body[: sum(sizes) + nbytes])
        out[HEAD_NBYTES:][: frame.numel()] = frame
        return HEAD_NBYTES + frame.numel()

    def _put_places(
        self, bitmap: Tensor, form: Form, numel: int, out: Tensor
    ) -> tuple[int, int, int]:
        """Write where coefficients are; the form of that, its `rice`, and its bytes."""
        if form.count == self.block:
            return ALL, 0, 0
        if self.has_gaps(form.count):
            kept = form.kept(numel)
            rice, size = best_rice(bitmap, kept)
            if size < bitmap.numel():
                write_gaps(bitmap, kept, rice, out[:size])
                return GAPS, rice, size
            out[: bitmap.numel()] = bitmap
        return BITMAP, 0, bitmap.numel()

    def read(self, payload: Tensor, numel: int, index: int, known: Head | None) -> Spectrum:
        """What a payload of `numel` coefficients says; ValueError if it is not whole.

        Those that are read with different `index` may be used together. `known` is the head on a
        GPU, where the host does not look.
        """
        head = self.head(payload) if known is None else known
        check_head_size(payload)
        form, body = self.form(head.kept), payload[HEAD_NBYTES:]
        sizes = [form.codes_nbytes(numel), form.scales_nbytes(numel)]
        places_nbytes = 0 if head.placed == ALL else bitmap_nbytes(numel)
        if self.zstd:
            body = decompress(body, sum(sizes) + places_nbytes).clone()
        if head.placed == GAPS:
            places_nbytes = max(body.numel() - sum(sizes), 0)
        check_size(body, sum(sizes) + places_nbytes)
        codes, scales, places = torch.split(body, [*sizes, places_nbytes])
        if head.placed != BITMAP:
            bitmap = scratch_bytes(f"bitmap{index}", bitmap_nbytes(numel), payload.device)
            if head.placed == ALL:
                _fill(bitmap, numel)
            else:
                kept = form.kept(numel)
                _check(read_gaps(places, bitmap, kept=kept, rice=head.rice, numel=numel))
            places = bitmap
        if known is not None:
            room = scratch_bytes(f"scales{index}", scales.numel(), scales.device)
            scales = torch.mul(scales, known.is_of(payload), out=room)  # 0 stands for NaN
        return Spectrum(head.domain, form, Kept(scales, places, codes))

    def usual_head(self, count: int, domain: int) -> Head:
        """That of payloads whose size does not depend on the data."""
        return Head(count, domain, ALL if count == self.block else BITMAP, 0)

    def head(self, payload: Tensor) -> Head:
        """That of a payload on the CPU."""
        return read_head(payload, self.block, has_gaps=not self.zstd)

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """The bytes of each part; of what zstd has compressed no parts are told apart."""
        head = self.head(payload)
        if self.zstd:
            return sizes_up_to("frame", payload, head=HEAD_NBYTES)
        form = self.form(head.kept)
        parts = {"head": HEAD_NBYTES, "coefficients": form.codes_nbytes(numel)}
        sizes = sizes_up_to(PLACES[head.placed], payload, **parts, scales=form.scales_nbytes(numel))
        return {name: size for name, size in sizes.items() if size}


def add_spectra(
    spectra: Sequence[Spectrum], domain: str, out: Tensor, weight: float, accumulate: bool
) -> None:
    """Write, or add, the sum of `spectra`, all of one form and of `domain`, to `out`."""
    kernel, form = kernels.for_device(out.device), spectra[0].form
    kept = [spectrum.kept for spectrum in spectra]
    how: dict[str, Any] = {"weight": weight, "accumulate": accumulate}
    _check(kernel.add_spectra(kept, out, domain=domain, form=form, **how))


def _check(is_whole: bool | Tensor) -> None:
    """Refuse what is damaged. A GPU has made it NaN, and the host does not ask."""
    if not isinstance(is_whole, Tensor) and not is_whole:
        raise ValueError(_DAMAGED)


def _fill(bitmap: Tensor, numel: int) -> None:
    """A bit for each of `numel` coefficients."""
    bitmap[: numel // 8] = 255
    bitmap[numel // 8 :] = 0
    if numel % 8:
        bitmap[numel // 8] = (1 << numel % 8) - 1
