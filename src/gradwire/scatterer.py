"""One buffer of gradients to this worker's shard of the mean: coded or raw, and what error stays.

A buffer holds one shard for each worker, one after the other, as FSDP lays them out. Nothing says
which parameters they are of, so residuals are kept by buffer, and a buffer must always hold the
same ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire import collectives
from gradwire.codec import FLOAT_DTYPES, Codec, Key
from gradwire.codecs.cast import Identity
from gradwire.link import Link
from gradwire.parts import Part


class Scatterer:
    """Reduces buffers. All ranks must ask for the same in the same order."""

    def __init__(
        self, codec: Codec, *, error_feedback: bool | None = None, min_numel: int = 10_000
    ) -> None:
        self.codec = codec
        self.error_feedback = not codec.unbiased if error_feedback is None else error_feedback
        self.min_numel = min_numel
        self.residuals: dict[str, Tensor] = {}

    def is_coded(self, buffer: Tensor) -> bool:
        """Does the codec take this buffer, or does it travel raw?"""
        return is_coded(self.codec, buffer, self.min_numel)

    def reduce(
        self, link: Link, buffer: Tensor, out: Tensor, name: str, key: Key, factor: float | None
    ) -> None:
        """Fill `out` with this worker's shard of the mean, or of `factor` times the sum.

        The buffer is called `name`; its shards have the numbers from that of `key` on. It may be
        overwritten.
        """
        if not self.is_coded(buffer):
            _reduce_raw(link, buffer, out, factor)
            return
        parts = self._parts(buffer, link.size, name, key)
        mean = collectives.reduce_scatter(link, self.codec, parts, key)
        out.copy_(mean if factor is None else mean.mul_(factor * link.size))

    def _parts(self, buffer: Tensor, count: int, name: str, key: Key) -> list[Part]:
        shards = buffer.view(count, -1)
        residual = self._residual(buffer, name)
        owed = [None] * count if residual is None else list(residual.view(count, -1))
        return [Part(shards[i], key.tensor + i, residual=owed[i]) for i in range(count)]

    def _residual(self, buffer: Tensor, name: str) -> Tensor | None:
        if not self.error_feedback:
            return None
        if name not in self.residuals:
            self.residuals[name] = torch.zeros_like(buffer, dtype=torch.float32)
        residual = self.residuals[name]
        if residual.numel() != buffer.numel():
            raise RuntimeError(
                f"the gradients of '{name}' are {buffer.numel()} values, but error feedback has "
                f"kept {residual.numel()} of it: not always the same parameters have one. Call "
                "`set_reduce_scatter_unused_params(True)`, or attach with `error_feedback=False`."
            )
        return residual


def is_coded(codec: Codec, buffer: Tensor, min_numel: int) -> bool:
    """Does `codec` take this buffer? Short ones, and types that no codec takes, travel raw."""
    if isinstance(codec, Identity):
        return False
    return buffer.numel() >= min_numel and buffer.dtype in FLOAT_DTYPES


def _reduce_raw(link: Link, buffer: Tensor, out: Tensor, factor: float | None) -> None:
    """As FSDP does it itself. Not every backend can multiply, so that is done here."""
    if factor not in (None, 1.0):
        with link.account.timed("encode"):
            buffer.mul_(factor)
    link.account.message(buffer.numel(), buffer.nbytes)
    link.reduce_scatter(out, buffer, "mean" if factor is None else "sum")
