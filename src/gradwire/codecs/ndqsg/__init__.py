r"""NDQSG: some workers say only where in a coarse cell they are; the others' mean says which cell.

Two lattices, a fine one of step D1 and a coarse one of step D2 = ratio * D1, an odd ratio. A plain
worker sends DQSG's integers. A nested one sends, with t = alpha x + u and u its dither,

    s = Q1(t) - Q2(t)           one of `ratio` multiples of D1, instead of 2 `levels` + 1    (1)

and the receiver resolves it with y, the mean of all that it has decoded so far:

    r = s - u - alpha y,    x^ = y + alpha (r - Q2(r))                                       (2)

Let z = x - y and e be the error of plain dithered quantization. Then

    x^ is right if |alpha z + e| < D2 / 2; its error is (alpha^2 - 1) z + alpha e            (3)

so with alpha = 1 it is DQSG's. Else x^ misses by a multiple of alpha D2, towards y, and is biased.
How many values are so is counted or estimated in `spread.py`.

A. Abdi, F. Fekri, "Nested Dithered Quantization for Communication Reduction in Distributed
Training", arXiv:1904.01197, section 4 and algorithm 2.

    paper                      here
    group P2                   workers for which `is_nested(rank)`, a share `nested_fraction`
    kappa                      scale of a block, each worker's own
    Delta_1, Delta_2 / Delta_1 scale / `levels`, `ratio`
    alpha                      `alpha`
    y                          total / count in the kernel `add_nested`

Differences from the paper: which workers are nested follows from the rank alone, in turn with the
plain ones. A payload says of which kind it is. The paper neither detects nor avoids wrong decodes.
Here whoever decodes counts or estimates what share of values nested payloads get wrong
(`failure_rate`), and a reducer sends the plain code instead unless that share was last
seen at or below `max_failures`; so also in the first step. Derivations and measured tables:
docs/codecs/dithered.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Codec
from gradwire.codecs.coding import Wire
from gradwire.codecs.dqsg import check_levels, is_number, steps_of
from gradwire.codecs.ndqsg import spread
from gradwire.codecs.ndqsg.spread import Received
from gradwire.kernels.formats.layout import check_block, grain_of
from gradwire.key import Key

_HEAD = 4


@dataclass(frozen=True)
class NDQSG(Codec):
    """Quantize with subtractive dither; some workers lean on what the others have sent.

    levels: levels on each side of zero, up to the block's largest value (2 to 127).
    ratio: an odd number of levels that a nested worker tells apart, fewer than 2 levels + 1.
    alpha: how much of the difference from the others is sent (above 0, up to 1).
    nested_fraction: the share of workers that are nested; rank 0 never is.
    block: values that share a scale.
    max_failures: the share of wrong values above which the plain code is sent; 1 is never.

    >>> import torch, gradwire as gw
    >>> codec = gw.NDQSG()
    >>> near = [torch.linspace(-1, 1, 1000), torch.linspace(-1, 1, 1000) + 0.01]
    >>> mean = gw.simulate(codec, near, gw.Key(seed=1))
    >>> (mean - sum(near) / 2).abs().max() < 1 / 3
    tensor(True)
    >>> [codec.encode(x, gw.Key(rank=rank), world=2).numel() for rank, x in enumerate(near)]
    [387, 262]
    """

    levels: int = 3
    ratio: int = 3
    alpha: float = 1.0
    nested_fraction: float = 0.5
    block: int | None = 512
    max_failures: float = 0.005

    unbiased = True  # but for values that are decoded wrong: `max_failures`
    fixed_size = False
    name = "ndqsg"

    def __post_init__(self) -> None:
        check_levels(self.levels)
        check_block(self.block)
        if not isinstance(self.ratio, int) or self.ratio < 3 or self.ratio % 2 == 0:
            raise ValueError(
                f"`ratio` must be an odd integer of 3 or more, so that coarse points are fine "
                f"points, got {self.ratio!r}; 3 sends the fewest bits."
            )
        if self.ratio >= 2 * self.levels + 1:
            raise ValueError(
                f"`ratio={self.ratio}` saves nothing: the plain code has {2 * self.levels + 1} "
                f"levels; lower `ratio`, or raise `levels` to {self.ratio // 2 + 1} or more."
            )
        if not is_number(self.alpha, 0, 1) or self.alpha == 0:
            raise ValueError(f"`alpha` must be above 0 and at most 1, got {self.alpha!r}; use 1.0.")
        if not is_number(self.nested_fraction, 0, 1) or self.nested_fraction == 1:
            raise ValueError(
                f"`nested_fraction` must be in [0, 1), got {self.nested_fraction!r}; somebody "
                "must send the plain code."
            )
        if not is_number(self.max_failures, 0, 1):
            raise ValueError(f"`max_failures` must be in [0, 1], got {self.max_failures!r}.")

    @property
    def grain(self) -> int | None:
        """Blocks and tiles stay whole."""
        return grain_of(self.block)

    def is_nested(self, rank: int) -> bool:
        """Does this worker send nested payloads, if it may?"""
        f = self.nested_fraction
        return math.floor((rank + 1) * f) > math.floor(rank * f)

    def num_dependent(self, world: int) -> int:
        """How many of `world` workers are nested."""
        return math.floor(world * self.nested_fraction) if world > 1 else 0

    def trusts(self, failure_rate: float | None) -> bool:
        """Is a share of wrong values, None if unknown, low enough for nested payloads?"""
        return (1.0 if failure_rate is None else failure_rate) <= self.max_failures

    def max_nbytes(self, numel: int) -> int:
        """That of a plain payload; nested ones are shorter."""
        return _HEAD + self._wire(False).max_nbytes(numel)

    def encode_into(
        self, x: Tensor, out: Tensor, key: Key, offset: int = 0, *, world: int = 1
    ) -> int:
        """See `Codec.encode_into`. A head of 4 bytes, 1 if nested, then scales and codes."""
        nested = world > 1 and self.is_nested(key.rank)

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

        out[:_HEAD] = torch.tensor([nested, 0, 0, 0], dtype=torch.uint8)
        return _HEAD + self._wire(nested).encode(x.numel(), out[_HEAD:], quantize)

    def decode_into(
        self,
        payload: Tensor,
        out: Tensor,
        key: Key,
        offset: int = 0,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """See `Codec.decode_into`; only for plain payloads."""
        part = self._read(payload, out.numel(), key)
        if part.nested:
            raise ValueError(
                "a nested payload says nothing without those of the other workers; pass them "
                "all to `aggregate_into`, or encode with `world=1` for the plain code."
            )
        self.decode_plain(part, out, offset, weight=weight, accumulate=accumulate)

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """The head, scales and codes, plain or nested."""
        return self._wire(False).anatomy(payload, numel, head=_HEAD)

    def aggregate_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> None:
        """See `Codec.aggregate_into`: plain payloads first, then nested ones by rank."""
        parts = self._read_all(payloads, out.numel(), keys)
        plain = [part for part in parts if not part.nested]
        weight = 1.0 / len(parts)
        for count, part in enumerate(plain):
            self.decode_plain(part, out, offset, weight=weight, accumulate=count > 0)
        for count, part in enumerate((p for p in parts if p.nested), len(plain)):
            self.add_nested(part, out, count, offset, weight=weight)

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
        self,
        part: Received,
        out: Tensor,
        offset: int,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """As `decode_into`, from a payload that was read."""
        kernels.for_device(out.device).dequantize_dithered(
            part.steps, part.codes, out, zero=self.levels, width=part.width,
            planes=False, block=self.block, key=part.key, offset=offset, weight=weight,
            accumulate=accumulate,
        )  # fmt: skip

    def _wire(self, nested: bool) -> Wire:
        levels = self.ratio // 2 if nested else self.levels
        return Wire("packed", (2 * levels).bit_length(), levels, self.block)

    def _read(self, payload: Tensor, numel: int, key: Key) -> Received:
        head = payload[:_HEAD].tolist()
        if head not in ([0, 0, 0, 0], [1, 0, 0, 0]):
            raise ValueError(f"the head of the payload is damaged: {head}, expected 0 or 1.")
        wire = self._wire(head[0] == 1)
        scales, codes = wire.decode(payload[_HEAD:], numel)
        return Received(head[0] == 1, steps_of(scales, self.levels), codes, wire.width, key)

    def _read_all(
        self, payloads: Sequence[Tensor], numel: int, keys: Sequence[Key]
    ) -> list[Received]:
        parts = [self._read(p, numel, key) for p, key in zip(payloads, keys, strict=True)]
        if all(part.nested for part in parts):
            raise ValueError("all payloads are nested; expected at least one plain one, of rank 0.")
        return parts

    def failure_rate(
        self, payloads: Sequence[Tensor], numel: int, keys: Sequence[Key], offset: int = 0
    ) -> float:
        """See `Codec.failure_rate`."""
        return spread.failure_rate(self, self._read_all(payloads, numel, keys), numel, offset)
