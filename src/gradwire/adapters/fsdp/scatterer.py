"""One buffer of gradients to this worker's shard of the mean: coded or raw, and what error stays.

A buffer holds one shard for each worker, one after the other, as FSDP lays them out. Nothing says
which parameters they are of, so residuals are kept by buffer, and a buffer must always hold the
same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire import collectives
from gradwire.adapters.fsdp.units import Unit
from gradwire.codec import FLOAT_DTYPES, Codec
from gradwire.codecs.cast import Identity
from gradwire.collectives.parts import Part
from gradwire.kernels.exact import divide
from gradwire.key import Key
from gradwire.reduction.residuals import Residuals
from gradwire.transport.link import Link


class Scatterer:
    """Reduces buffers. All ranks must ask for the same in the same order."""

    def __init__(
        self,
        codec: Codec,
        residuals: Residuals,
        *,
        error_feedback: bool | None = None,
        min_numel: int = 10_000,
    ) -> None:
        self.codec = codec
        self.error_feedback = codec.owes if error_feedback is None else error_feedback
        self.min_numel = min_numel
        self._residuals = residuals

    def is_coded(self, buffer: Tensor) -> bool:
        """Does the codec take this buffer, or does it travel raw?"""
        return is_coded(self.codec, buffer, self.min_numel)

    def owes(self, unit: Unit) -> bool:
        """Is there a residual for the gradients of `unit`?"""
        return self.error_feedback and self.is_coded(unit.gradients)

    def parts(self, unit: Unit, buffer: Tensor, key: Key) -> list[Part]:
        """The shards of `buffer`, which have the numbers from that of `key` on."""
        shards = buffer.view(unit.shards, -1)
        owed: list[Tensor | None] = [None] * unit.shards
        if self.owes(unit):
            residual = self._residuals.of(unit.within, buffer.numel())
            owed = list(residual.view(unit.shards, -1))
        return [
            Part(values, key.tensor + i, self.codec, residual=owed[i], name=unit.name)
            for i, values in enumerate(shards)
        ]

    def reduce(
        self,
        link: Link,
        buffer: Tensor,
        shards: Sequence[Part],
        out: Tensor,
        key: Key,
        factor: float | None,
    ) -> None:
        """Fill `out` with this worker's shard of the mean, or of `factor` times the sum."""
        if not self.is_coded(buffer):
            _reduce_raw(link, buffer, out, factor)
            return
        mean = collectives.reduce_scatter(link, shards, key)
        out.copy_(mean if factor is None else mean.mul_(factor * link.size))


def is_coded(codec: Codec, buffer: Tensor, min_numel: int) -> bool:
    """Does `codec` take this buffer? Short ones, and types that no codec takes, travel raw."""
    if isinstance(codec, Identity):
        return False
    return buffer.numel() >= max(min_numel, 1) and buffer.dtype in FLOAT_DTYPES


def _reduce_raw(link: Link, buffer: Tensor, out: Tensor, factor: float | None) -> None:
    """Send each shard to its owner, who adds them up in the order of ranks.

    The reduce-scatter of gloo is an all-reduce inside, which sends twice as much, and adds 16-bit
    numbers in 16 bits. Here they are added as float32 and rounded once.
    """
    link.account.message(buffer.numel(), buffer.nbytes)
    received, sizes = link.room("receive", buffer.nbytes), [out.nbytes] * link.size
    link.all_to_all(received, buffer.view(torch.uint8), sizes, sizes)
    with link.account.timed("decode"):
        first, *others = received.view(buffer.dtype).view(link.size, -1)
        if buffer.dtype.itemsize == 2:
            first = link.floats("mean", out.numel()).copy_(first)
        for shard in others:
            first.add_(shard)
        out.copy_(divide(first, link.size, first) if factor is None else first.mul_(factor))
