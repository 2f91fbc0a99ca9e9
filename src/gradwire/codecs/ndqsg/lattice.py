"""The two codes of NDQSG, plain and nested, and their mean; equations are in `__init__.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Codec, Seen
from gradwire.codecs.coding import Coding
from gradwire.codecs.dqsg import steps_of
from gradwire.codecs.ndqsg import spread
from gradwire.codecs.ndqsg.spread import Received
from gradwire.kernels.formats.layout import grain_of
from gradwire.key import Key

HEAD = 4
"""Bytes before the scales: 1 if the payload is nested, then zeros."""


@dataclass(frozen=True)
class Lattice(Codec):
    """A fine lattice and a coarse one. If it `nests`, some workers send nested payloads.

    The decoder sees what share of values nested payloads get wrong, or would get wrong.
    """

    levels: int
    ratio: int
    alpha: float
    nested_fraction: float
    block: int | None
    nests: bool
    wire: str

    unbiased = True
    fixed_size = False
    num_seen = 1

    @property
    def feeds_back(self) -> bool:  # type: ignore[override]
        return not self.nests

    @property
    def grain(self) -> int | None:
        return grain_of(self.block)

    def is_nested(self, rank: int) -> bool:
        """Does this worker send nested payloads, if it may? Rank 0 never does."""
        f = self.nested_fraction
        return math.floor((rank + 1) * f) > math.floor(rank * f)

    def max_nbytes(self, numel: int) -> int:
        """Room for either payload; packed, nested ones are never longer."""
        return HEAD + self._coding(False).max_nbytes(numel)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        nested = self.nests and self.is_nested(key.rank)

        def quantize(scales: Tensor, codes: Tensor, width: int) -> None:
            kernel = kernels.for_device(x.device)
            if nested:  # eq. (1)
                kernel.block_scales(x, scales, block=self.block, norm="max")
                kernel.quantize_nested(
                    x, steps_of(scales, self.levels) / self.alpha, codes, ratio=self.ratio,
                    width=width, block=self.block, key=key, offset=offset,
                )  # fmt: skip
            else:
                kernel.quantize(
                    x, scales, codes, levels=self.levels, width=width, block=self.block,
                    norm="max", key=key, offset=offset,
                )  # fmt: skip

        out[:HEAD] = torch.tensor([nested, 0, 0, 0], dtype=torch.uint8)
        return HEAD + self._coding(nested).encode(x.numel(), out[HEAD:], quantize)

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        part = self._read(payload, out.numel(), key)
        if part.nested:
            raise ValueError(
                "a nested payload says nothing without those of the other workers; pass them "
                "all to `mean_into`, or encode with the plain code, `NDQSG.plain`."
            )
        self.decode_plain(part, out, offset, weight=weight, accumulate=accumulate)

    def mean_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> Seen:
        """Plain payloads first, then nested ones by rank."""
        parts = [self._read(p, out.numel(), key) for p, key in zip(payloads, keys, strict=True)]
        plain = [part for part in parts if not part.nested]
        if not plain:
            raise ValueError("all payloads are nested; expected at least one plain one, of rank 0.")
        weight = 1.0 / len(parts)
        for count, part in enumerate(plain):
            self.decode_plain(part, out, offset, weight=weight, accumulate=count > 0)
        for count, part in enumerate((p for p in parts if p.nested), len(plain)):
            self.add_nested(part, out, count, offset, weight=weight)
        if not any(self.is_nested(key.rank) for key in keys):
            return (0.0,)
        return (spread.failure_rate(self, parts, out.numel(), offset),)

    def subtract(self, payload: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        """What a nested payload says, if nothing fails, is what a plain one says."""
        if payload[0]:
            room = torch.empty(self.max_nbytes(out.numel()), dtype=torch.uint8)
            payload = room[: replace(self, nests=False).encode_into(out, room, key, offset)]
        super().subtract(payload, out, key, offset)

    def add_nested(
        self, part: Received, total: Tensor, count: int, offset: int, *, weight: float = 1.0
    ) -> None:
        """Decode with the mean of the `count` vectors in `total`, and add the result to it.

        All of them count `weight` times.
        """
        kernels.for_device(total.device).add_nested(  # eq. (2)
            part.steps, part.codes, total, count=count, ratio=self.ratio, alpha=self.alpha,
            width=part.width, block=self.block, key=part.key, offset=offset, weight=weight,
        )  # fmt: skip

    def decode_plain(
        self, part: Received, out: Tensor, offset: int, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """As `decode_into`, from a payload that was read."""
        kernels.for_device(out.device).dequantize_dithered(
            part.steps, part.codes, out, zero=self.levels, width=part.width,
            block=self.block, key=part.key, offset=offset, weight=weight,
            accumulate=accumulate,
        )  # fmt: skip

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """The head, scales and codes, plain or nested."""
        return self._coding(False).anatomy(payload, numel, head=HEAD)

    def _coding(self, nested: bool) -> Coding:
        levels = self.ratio // 2 if nested else self.levels
        return Coding(self.wire, (2 * levels).bit_length(), levels, self.block)

    def _read(self, payload: Tensor, numel: int, key: Key) -> Received:
        head = payload[:HEAD].tolist()
        if head not in ([0, 0, 0, 0], [1, 0, 0, 0]):
            raise ValueError(f"the head of the payload is damaged: {head}, expected 0 or 1.")
        coding = self._coding(head[0] == 1)
        scales, codes = coding.decode(payload[HEAD:], numel)
        if self.wire != "packed":
            codes = codes.clone()  # the room is that of the next payload, too
        return Received(head[0] == 1, steps_of(scales, self.levels), codes, coding.width, key)
