"""THC's adders: what is rotated is rounded and added as integers, and turned back once.

Equations are those of `thc/__init__.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from gradwire import kernels, scratch
from gradwire.codec import NetworkAdder
from gradwire.codecs.scaled import ScaledAdder
from gradwire.codecs.thc.gain import gains
from gradwire.codecs.uniform import FieldAdder, Grid, UniformAdder, common
from gradwire.kernels.formats.layout import MIN_SCALE, num_blocks
from gradwire.kernels.formats.rotation import SHORTER, padded_numel, padded_size
from gradwire.key import Hop, Key

if TYPE_CHECKING:
    from gradwire.codecs.thc import THC

_PIECES = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Values that are rotated at once: they stay in a processor's cache, or fill a GPU."""


class TurnedAdder(ScaledAdder):
    """Integers on a grid for rotated blocks; `scales` are where it ends for each of them."""

    _kind: ClassVar[type[UniformAdder]] = UniformAdder

    def __init__(self, codec: THC, world: int, scales: Tensor) -> None:
        super().__init__(world, scales)
        self._codec, self._block = codec, codec.block
        self._grid = Grid(codec.num_levels, codec.block, subtractive=True)
        self._sums = self._on(scales)

    def code_nbytes(self, numel: int) -> int:
        return self._sums.code_nbytes(padded_numel(numel, self._block))

    def total_nbytes(self, numel: int) -> int:
        return self._sums.total_nbytes(padded_numel(numel, self._block))

    def add(self, codes: Tensor, total: Tensor, numel: int, key: Key, offset: int = 0) -> None:
        self._sums.add(codes, total, padded_numel(numel, self._block), key, offset)

    def quantize(
        self, x: Tensor, codes: Tensor, key: Key, offset: int, *, norm: str | None = None
    ) -> None:
        turn = turn_of(key, self.world)
        for start, stop in pieces(x):
            part = x[start:stop]
            y = room("rotated", padded_numel(len(part), self._block), x)
            kernels.for_device(x.device).rotate_blocks(
                part, y, block=self._block, key=turn, offset=offset + start
            )
            own, scales = ends(self._codec, y, len(part)), self._scales_of(start, stop)
            if norm is not None:
                scales.copy_(own)
            into = codes[self._sums.code_nbytes(start) :]
            raised = scales / gains(own, scales, self._codec.reach)  # eq. (3)
            self._on(raised).quantize(y, into, key, offset + start)

    def dequantize(
        self, codes: Tensor, out: Tensor, key: Key, offset: int, *,
        total: bool, weight: float, accumulate: bool = False,
    ) -> None:  # fmt: skip
        turn, nbytes = turn_of(key, self.world), self._sums.code_nbytes
        if total:
            nbytes = self._sums.total_nbytes
        for start, stop in pieces(out):
            y = room("rotated", padded_numel(stop - start, self._block), out)
            self._on(self._scales_of(start, stop)).dequantize(
                codes[nbytes(start) :], y, key, offset + start, total=total, weight=weight
            )
            kernels.for_device(out.device).rotate_blocks_back(
                y, out[start:stop], block=self._block, key=turn, offset=offset + start,
                accumulate=accumulate,
            )  # fmt: skip

    def _on(self, scales: Tensor) -> UniformAdder:
        """What rounds rotated values, and adds them."""
        return self._kind(self._grid, self.world, scales)

    def _scales_of(self, start: int, stop: int) -> Tensor:
        return self.scales[start // self._block : num_blocks(stop, self._block)]


class NetworkTurnedAdder(TurnedAdder, NetworkAdder):
    """The same integers in fields that the network may add."""

    _kind = FieldAdder
    dtype = FieldAdder.dtype


def turn_of(key: Key, world: int) -> Key:
    """The signs of the rotation: all workers have the same, and a payload of its own has its own.

    They are not those of the dither, whose stream is that of the key.
    """
    return common(key, world).of(hop=key.hop ^ Hop.ROTATION)


def pieces(x: Tensor) -> Iterator[tuple[int, int]]:
    """(first value, last)"""
    size = _PIECES[x.device.type]
    return ((start, min(start + size, len(x))) for start in range(0, len(x), size))


def room(name: str, numel: int, like: Tensor) -> Tensor:
    """Floats of this thread that are used again."""
    return scratch.of_thread().take(name, numel, torch.float32, like.device)


def ends(codec: THC, y: Tensor, numel: int) -> Tensor:
    """Where the grid ends for blocks `y` of `numel` values, 1/64 as long as they were: eq. (1).

    The root of a block's size is part of the scale; that of a padded one is another.
    """
    scales = torch.empty(num_blocks(len(y), codec.block), device=y.device)
    kernels.for_device(y.device).block_scales(y, scales, block=codec.block, norm="l2")
    scales *= codec.reach / math.sqrt(codec.block)
    if numel % codec.block:
        scales[-1:] *= math.sqrt(codec.block / padded_size(numel % codec.block))
    return scales.clamp_min_(MIN_SCALE)


def statistics(codec: THC, x: Tensor) -> Tensor:
    """The same of blocks that are not rotated, which does not change their length."""
    found = torch.empty(num_blocks(len(x), codec.block), device=x.device)
    for start, stop in pieces(x):
        shorter = room("shorter", stop - start, x)
        torch.mul(x[start:stop].float(), SHORTER, out=shorter)
        at = start // codec.block
        own = ends(codec, shorter, stop - start)
        found[at : at + len(own)] = own
    return found
