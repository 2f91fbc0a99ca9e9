"""`low_rank`: one round of a power iteration, whose two factors are each a `code_reduce`.

Workers add the first factors of their matrices, make the sum orthonormal, every one for itself and
all with the same bits, and add the second factors that belong to it. A matrix plus what is owed of
it is never stored: it is added up whenever a kernel goes over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Codec, SummableCodec
from gradwire.codecs.powersgd.low_rank import LowRank
from gradwire.collectives.code_reduce import CodeReduce, sum_codes
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.feedback import Own, all_finite, tell
from gradwire.collectives.parts import Part, Slice
from gradwire.collectives.sums import Sum, combined, simulate_sum
from gradwire.kernels.exact import is_finite
from gradwire.key import Key
from gradwire.transport.link import Link


class LowRankReduce(Collective):
    """Add the factors of whole matrices. Seen is what the next step starts from."""

    name = "low_rank"

    def check(self, codec: Codec, world: int) -> None:
        if not isinstance(codec, LowRank):
            raise TypeError(f"{codec!r} has no factors; leave `collective` out.")

    def message_nbytes(self, codec: Codec, numel: int, world: int) -> int:
        low = _low(codec)
        return sum(CodeReduce().message_nbytes(low.inner, size, world) for size in low.sizes)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        rounds = _rounds(link, pieces, key)
        with link.account.timed("encode"):
            for each in rounds:
                each.codec.first(each.x, each.extra, each.start, each.p)
        link.account.message(sum(piece.numel for piece in pieces), 0)
        sums = sum_codes(link, *_shadows(rounds, 0), key)
        with link.account.timed("encode"):
            for each, added in zip(rounds, sums, strict=True):
                added.decode(each.p.view(-1))
                kernels.for_device(each.p.device).orthonormalize(each.p)
                each.codec.second(each.x, each.extra, each.p, each.q)
        sums = sum_codes(link, *_shadows(rounds, 1), key)
        with link.account.timed("decode"):
            return [each.settle(link, added) for each, added in zip(rounds, sums, strict=True)]

    def simulate(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> Tensor:
        low = _low(codec)
        matrices, device = [low.matrix(vector.float()) for vector in vectors], vectors[0].device
        start = low.begin(key, device)
        p, q = (torch.empty(len(vectors), low.rank, size, device=device) for size in low.shape)
        for matrix, own in zip(matrices, p, strict=True):
            low.first(matrix, None, start, own)
        first = _simulated(low.inner, p, key, 0)
        kernels.for_device(first.device).orthonormalize(first)
        for matrix, own in zip(matrices, q, strict=True):
            low.second(matrix, None, first, own)
        second = _simulated(low.inner, q, key, low.second_at)
        low.expand(first, second, mean := torch.empty(low.shape, device=device))
        return mean.masked_fill_(~torch.as_tensor(low.is_finite(second)), torch.nan).view(-1)

    def rehearse(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> None:
        super().rehearse(codec, vectors, key)
        low = _low(codec)
        (p, q), owed = low.room(vectors[0].device), low.matrix(vectors[0].clone())
        start = replace(low, start=q.zero_()).begin(key, q.device)
        kernels.for_device(q.device).settle_outer(owed.clone(), owed, p.zero_(), start, q)


@dataclass(frozen=True)
class _Round:
    """One matrix on its way: `x`, what is owed of it, and room for both factors."""

    piece: Slice
    codec: LowRank
    x: Tensor
    extra: Tensor | None
    start: Tensor
    p: Tensor
    q: Tensor

    def settle(self, link: Link, added: Sum) -> Sighting:
        """Store the mean, and update the residual unless the mean is not finite."""
        mean = link.floats("mean factor", self.q.numel()).view(self.q.shape)
        added.decode(mean.view(-1))
        added.subtract(self.q.view(-1).zero_())
        self.q.neg_()  # what this worker has sent, as others read it
        if self.piece.part.watch is not None:
            source = self.x.clone() if self.extra is None else self.x + self.extra
            tell(self.piece, source.view(-1), self._subtract)
        fits = self.codec.is_finite(mean)
        if isinstance(fits, Tensor):
            return self.piece, (self._settle_there(mean, fits),)
        if not fits:
            self.piece.values.fill_(torch.nan)
            return self.piece, ()
        if not self._fits(link, mean):
            return self.piece, ()
        self._store(mean)
        return self.piece, (self.codec.next_start(self.start, mean),)

    def _settle_there(self, mean: Tensor, fits: Tensor) -> Tensor:
        """The same on a GPU, which keeps to itself whether it `fits`; where to start from next.

        What is owed is in `extra`, a copy. Of a factor of NaN all that it says is NaN.
        """
        values, share, before = self.piece.values, self.piece.part.share, self.codec.start
        self._store(mean.masked_fill_(~fits, torch.nan))
        if values.dtype != torch.float32:
            values.copy_(self.x.view(-1))
            fits = fits & all_finite(values)  # float16 may not hold it
        if self.piece.residual is not None and self.extra is not None:
            owed = self.piece.residual
            torch.where(fits & (share != 0), self.extra.view(-1), owed, out=owed)
        kept = torch.zeros_like(self.q) if before is None else before
        return torch.where(fits, self.codec.next_start(self.start, mean), kept)

    def _subtract(self, out: Tensor) -> None:
        self.codec.expand(self.p, -self.q, self.codec.matrix(out), accumulate=True)

    def _store(self, mean: Tensor) -> None:
        if self.extra is None:
            self.codec.expand(self.p, mean, self.x)
        else:
            kernel = kernels.for_device(self.x.device)
            kernel.settle_outer(self.x, self.extra, self.p, mean, self.q)

    def _fits(self, link: Link, mean: Tensor) -> bool:
        """Store the mean in 16 bits if the gradient has them; float16 may not hold it."""
        if self.piece.values.dtype == torch.float32:
            return True
        target = link.floats("target", self.piece.numel)
        self.codec.expand(self.p, mean, self.codec.matrix(target))
        self.piece.values.copy_(target)
        return is_finite(self.piece.values)


def _rounds(link: Link, pieces: Sequence[Slice], key: Key) -> list[_Round]:
    codecs = [_low(piece.codec) for piece in pieces]
    narrow = [p.numel * (p.values.dtype != torch.float32) for p in pieces]
    copies = torch.split(link.floats("source", sum(narrow)), narrow)
    owed = _owed(link, pieces)
    firsts, seconds = ([codec.sizes[i] for codec in codecs] for i in (0, 1))
    rooms = zip(
        torch.split(link.floats("first factors", sum(firsts)), firsts),
        torch.split(link.floats("second factors", sum(seconds)), seconds), strict=True,
    )  # fmt: skip
    found = []
    for piece, codec, copy, due, (p, q) in zip(pieces, codecs, copies, owed, rooms, strict=True):
        x = copy.copy_(piece.values) if copy.numel() else piece.values
        extra = None if due is None else codec.matrix(due)
        start = codec.begin(key.of(tensor=piece.part.tensor), x.device)
        both = p.view(codec.rank, -1), q.view(codec.rank, -1)
        found.append(_Round(piece, codec, codec.matrix(x), extra, start, *both))
    return found


def _owed(link: Link, pieces: Sequence[Slice]) -> list[Tensor | None]:
    """What is owed and due of each: on the CPU its residual, on a GPU a copy of the share of it."""
    residuals = [piece.residual for piece in pieces]
    if link.device.memory.type == "cpu":
        return residuals
    sizes = [0 if residual is None else residual.numel() for residual in residuals]
    room = torch.split(link.floats("due", sum(sizes)), sizes)
    return [
        None if residual is None else torch.mul(residual, piece.part.share, out=out)
        for piece, residual, out in zip(pieces, residuals, room, strict=True)
    ]


def _shadows(rounds: Sequence[_Round], which: int) -> tuple[list[Own], list[Tensor]]:
    """The first factors of all matrices, or the second ones, as slices of parts, and the values."""
    factors = [(each.p, each.q)[which].view(-1) for each in rounds]
    starts = [which * each.codec.second_at for each in rounds]
    vectors = [
        Own(Slice(Part(values, each.piece.part.tensor, each.codec.inner), at, at + values.numel()))
        for each, values, at in zip(rounds, factors, starts, strict=True)
    ]
    return vectors, factors


def _simulated(inner: SummableCodec, factors: Tensor, key: Key, offset: int) -> Tensor:
    vectors = list(factors.flatten(1))
    adder = inner.adder(len(vectors), combined(inner, vectors))
    return simulate_sum(adder, vectors, key, offset).view(factors.shape[1:])


def _low(codec: Codec) -> LowRank:
    assert isinstance(codec, LowRank)
    return codec
