"""Bytes that a codec puts on the wire: exactly, for a bucket, and for each value of a long vector.

The one place that knows how `collectives/` lays its messages out. Codecs whose payloads have no
fixed size are counted at `bytes_per_value`, which must have been measured; sizes and failure rates
that workers tell each other are counted too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Adder, Codec, SummableCodec
from gradwire.codecs import parse
from gradwire.codecs.cast import Identity
from gradwire.codecs.gradiveq import GradiVeQ
from gradwire.codecs.inner import inner_codec
from gradwire.codecs.powersgd import PowerSGD
from gradwire.codecs.powersgd.low_rank import LowRank
from gradwire.collectives.choose import choose
from gradwire.collectives.framing import aligned
from gradwire.planner.layout import Ready, chunks, cut
from gradwire.transport.account import ring_nbytes

_LONG = 1 << 20
_FEW = 8
IMAGE = 8
"""Learning codecs are taken at this ratio, in their compress phase."""


@dataclass(frozen=True)
class Messages:
    """The messages of a codec, as it travels by default, among so many workers."""

    spec: str
    workers: int
    bytes_per_value: float | None = None

    @cached_property
    def codec(self) -> Codec:
        """What the spec spells."""
        return parse(self.spec)

    @cached_property
    def collective(self) -> str:
        """How it travels; raw, by the backend's ring, if nothing is coded."""
        if isinstance(self.codec, Identity):
            return "all_reduce"
        codec = self.codec
        first = codec.first(_LONG) if isinstance(codec, AdaptiveCodec) else codec
        return choose(first, self.workers).name

    @property
    def _adder(self) -> Adder:
        assert isinstance(self.codec, SummableCodec)
        return self.codec.adder(self.workers)

    @property
    def grain(self) -> int | None:
        """Where a vector may be cut."""
        return self.codec.grain

    @property
    def is_exact(self) -> bool:
        """Do sizes depend on lengths alone?

        Who owns what of a `relay` also depends on the numbers of parameters, and few bytes on that.
        """
        is_fixed = self.codec.fixed_size and not isinstance(self.codec, AdaptiveCodec)
        return is_fixed and self.collective != "relay"

    def per_value(self) -> tuple[float, float, float]:
        """Bytes that a worker sends for a value of a long vector: to ask, first, and in between."""
        n, numel = self.workers, _LONG
        if self.collective == "all_reduce":
            return 0.0, ring_nbytes(4 * numel, n) / numel, 0.0
        if isinstance(self.codec, GradiVeQ):
            return self._images(self.codec)
        if isinstance(self.codec, PowerSGD):
            first, second = (_added(nbytes / numel, n) for nbytes in self._factors(numel))
            return (sum(first), *second)
        if self.collective == "all_gather":
            return 0.0, (n - 1) * self._payload(numel) / numel, 0.0
        share = (n - 1) / n
        if self.collective in ("two_shot", "relay"):
            sent = share * self._payload(numel) / numel
            return 0.0, sent, sent
        ask = self._statistics_nbytes([numel], 0) / numel
        code = self._adder.code_nbytes(numel) / numel
        if n == 2:
            return ask, code, 0.0
        return ask, share * code, share * self._adder.total_nbytes(numel) / numel

    def _images(self, codec: GradiVeQ) -> tuple[float, float, float]:
        """Those of images, in which one value stands for `IMAGE`, through the inner codec."""
        inner = inner_codec(codec.inner)
        if isinstance(inner, Identity):
            return (0.0, *_added(4 / IMAGE, self.workers))
        ask, first, between = Messages(str(inner), self.workers).per_value()
        return ask / IMAGE, first / IMAGE, between / IMAGE

    def _factors(self, numel: int) -> list[int]:
        """Bytes of both factors of a square matrix."""
        assert isinstance(self.codec, PowerSGD)
        low, *_ = self.codec.examples(numel)
        assert isinstance(low, LowRank)
        return [low.inner.adder(self.workers).code_nbytes(size) for size in low.sizes]

    def step_nbytes(self, buckets: Sequence[Ready], rank: int = 0) -> int:
        """All that worker `rank` sends in a step."""
        if self.collective == "all_reduce":
            return sum(ring_nbytes(4 * sum(b.sizes), self.workers) for b in buckets)
        total, small = 0, 0
        for bucket in buckets:
            if not bucket.coded:
                total += ring_nbytes(4 * sum(bucket.sizes), self.workers)
                continue
            small += bucket.small
            for chunk in chunks(bucket.coded, self.grain, self.workers):
                total += self._chunk_nbytes(chunk, rank)
        return total + self._owners_nbytes(small, rank)

    def _chunk_nbytes(self, sizes: Sequence[int], rank: int) -> int:
        if self.collective == "all_gather":
            payload = sum(aligned(self._payload(size)) for size in sizes)
            return (self.workers - 1) * (payload + self._told(len(sizes)))
        shards = cut(sizes, self.grain, self.workers)
        if self.collective in ("two_shot", "relay"):
            return self._two_shot_nbytes(shards, rank)
        return self._code_nbytes(sizes, shards, rank)

    def _two_shot_nbytes(self, shards: Sequence[Sequence[int]], rank: int) -> int:
        sizes = [sum(aligned(self._payload(size)) for size in shard) for shard in shards]
        told = self._told(sum(map(len, shards))) + self._told(max(map(len, shards)))
        return sum(sizes) - sizes[rank] + (self.workers - 1) * (sizes[rank] + told)

    def _code_nbytes(self, sizes: Sequence[int], shards: Sequence[Sequence[int]], rank: int) -> int:
        n, adder = self.workers, self._adder
        asked = self._statistics_nbytes(sizes, rank)
        if n == 2:
            return asked + sum(adder.code_nbytes(size) for size in sizes)
        codes = [sum(adder.code_nbytes(size) for size in shard) for shard in shards]
        own = sum(adder.total_nbytes(size) for size in shards[rank])
        return asked + sum(codes) - codes[rank] + (n - 1) * own

    def _statistics_nbytes(self, sizes: Sequence[int], rank: int) -> int:
        codec, n = self.codec, self.workers
        assert isinstance(codec, SummableCodec)
        numel = sum(codec.statistics(torch.zeros(size)).numel() for size in sizes)
        if not numel:
            return 0
        if n <= _FEW and (codec.statistics_op == "sum" or n > 2):
            return (n - 1) * 4 * numel
        if codec.statistics_op == "max":
            return ring_nbytes(4 * numel, n)
        return self._owners_nbytes(numel, rank)

    def _owners_nbytes(self, numel: int, rank: int) -> int:
        """To the owners of shards of `numel` floats, and from this one."""
        n = self.workers
        if n == 2:
            return 4 * numel
        own = len(torch.arange(numel).tensor_split(n)[rank])
        return 4 * (numel - own) + (n - 1) * 4 * own

    def _payload(self, numel: int) -> int:
        if self.codec.fixed_size or self.bytes_per_value is None:
            return self.codec.max_nbytes(numel)
        return round(self.bytes_per_value * numel)

    def _told(self, count: int) -> int:
        """Sizes of payloads, as 64-bit integers, from which nothing can be foretold."""
        return 0 if self.codec.fixed_size else 8 * count


def _added(nbytes: float, workers: int) -> tuple[float, float]:
    """What a worker sends of codes that owners add, and of their totals."""
    share = (workers - 1) / workers * nbytes
    return (nbytes, 0.0) if workers == 2 else (share, share)
