"""One bucket of gradients to its mean: which parameters are coded, how, and what error stays.

A bucket is cut into chunks, which can be reduced one beside the other. Parameters below `min_numel`
values travel raw: they are most of the trouble and almost none of the bytes. So do those of a type
no codec takes, such as float64.
Residuals are kept by parameter, never by bucket: DDP rebuilds and reorders its buckets. So are
failure rates, of codecs whose payloads depend on each other: while one is unknown or too high, the
payloads of that parameter are such as can be decoded alone.
A codec that learns sends some steps raw, and says how much of a residual these are to deliver.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire import collectives
from gradwire.codec import FLOAT_DTYPES, Codec, Key
from gradwire.codecs.cast import Identity
from gradwire.lanes import Job
from gradwire.learner import Learner
from gradwire.learning import LearningCodec
from gradwire.link import Link
from gradwire.parts import Part, Slice, cut, whole
from gradwire.raw import reduce_joined, reduce_raw

CHUNK = 1 << 19
"""Values that a job takes, for each worker.

Few, so that while one chunk is on the wire another is encoded; but each costs the latency of some
messages, so not too few. At 1 Gbit/s half as many were slower among four workers, by a third.
"""


@dataclass(frozen=True)
class Work:
    """What is to be done for one bucket.

    Jobs are independent of each other and may run at once, each over a link of its own; `small`
    is to be reduced raw, with that of other buckets if one likes.
    """

    jobs: Sequence[Job]
    small: list[Tensor]
    chunks: list[list[Slice]]


class Reducer:
    """Reduces buckets over links like `link`. All ranks must ask for the same in the same order."""

    def __init__(
        self,
        link: Link,
        codec: Codec,
        *,
        collective: str | None = None,
        error_feedback: bool | None = None,
        min_numel: int = 10_000,
        chunk: int | None = None,
        seed: int = 0,
    ) -> None:
        self.link = link
        self.codec = codec
        self.collective = collective or collectives.choose(codec, link.size)
        collectives.check(codec, self.collective, link.size)
        self.error_feedback = not codec.unbiased if error_feedback is None else error_feedback
        if self.error_feedback and codec.num_dependent(link.size):
            raise ValueError(
                f"payloads of {codec!r} need each other to be decoded, so none says what was lost; "
                "leave `error_feedback` out, or use `DQSG`."
            )
        self.min_numel = min_numel
        self.chunk = CHUNK * link.size if chunk is None else chunk
        self.seed = seed
        self.step = 0
        self.residuals: dict[int, Tensor] = {}
        self.failure_rates: dict[int, float] = {}
        self.expected_failures = 0.0
        self.fallbacks = 0
        self._has_warned = False
        self.learner: Learner | None = None
        if isinstance(codec, LearningCodec):
            if self.collective != "all_reduce":
                raise ValueError(
                    f"{codec!r} learns from sums and travels by all_reduce, got "
                    f"`collective={self.collective!r}`; leave it out."
                )
            self.learner = Learner(codec, owing=self.error_feedback)

    def is_coded(self, values: Tensor) -> bool:
        """Does the codec take this gradient, or does it travel raw?"""
        if isinstance(self.codec, Identity) and self.collective == "all_reduce":
            return False
        return values.numel() >= self.min_numel and values.dtype in FLOAT_DTYPES

    def work(self, bucket: Tensor, parts: Sequence[Part]) -> Work:
        """What replaces `bucket`, which `parts` tile, by its mean over the workers."""
        coded = [part for part in parts if self.is_coded(part.values)]
        small = [part.values for part in parts if not self.is_coded(part.values)]
        if not coded:
            return Work([lambda link: reduce_raw(link, bucket)], [], [])
        if self.learner is not None:
            return self._learning_work(self.learner, coded, small)
        coded = [
            replace(part, residual=self._residual(part), alone=self._is_alone(part))
            for part in coded
        ]
        chunks = self._chunks(coded, self.codec.grain)
        key = Key(seed=self.seed, step=self.step)
        reduce = collectives.COLLECTIVES[self.collective]
        jobs = [partial(reduce, codec=self.codec, pieces=chunk, key=key) for chunk in chunks]
        return Work(jobs, small, chunks)

    def finish(self, work: Work, results: Sequence[Any]) -> None:
        """Take in what the jobs have returned."""
        if self.learner is None and self.codec.num_dependent(self.link.size):
            self._learn_rates(work.chunks, results)

    def reduce(self, bucket: Tensor, parts: Sequence[Part]) -> None:
        """Do the work of one bucket here and now."""
        work = self.work(bucket, parts)
        results = [job(self.link) for job in work.jobs]
        if work.small:
            reduce_joined(self.link, work.small)
        self.finish(work, results)

    def _chunks(self, parts: Sequence[Part], grain: int | None) -> list[list[Slice]]:
        numel = sum(part.values.numel() for part in parts)
        count = -(-numel // self.chunk)
        return [chunk for chunk in cut(whole(parts), grain, count) if chunk]

    def _is_alone(self, part: Part) -> bool:
        return not self.codec.trusts(self.failure_rates.get(part.tensor))

    def _learn_rates(
        self, chunks: Sequence[Sequence[Slice]], results: Sequence[dict[int, float]]
    ) -> None:
        """Count what went wrong, and remember how likely that is. Ranks agree on all of it."""
        parts: dict[int, Part] = {}
        wrong: dict[int, float] = {}
        for chunk, rates in zip(chunks, results, strict=True):
            for piece in chunk:
                tensor = piece.part.tensor
                parts[tensor] = piece.part
                wrong[tensor] = wrong.get(tensor, 0.0) + rates[tensor] * piece.numel
        for tensor, part in parts.items():
            self._learn_rate(part, wrong[tensor])

    def _learn_rate(self, part: Part, wrong: float) -> None:
        rate, known = wrong / part.values.numel(), part.tensor in self.failure_rates
        if not part.alone:
            self.expected_failures += wrong * self.codec.num_dependent(self.link.size)
        elif known:
            self.fallbacks += 1
        if not self.codec.trusts(rate) and not self._has_warned:
            self._warn(part.tensor, rate)
        self.failure_rates[part.tensor] = rate

    def _warn(self, tensor: int, rate: float) -> None:
        self._has_warned = True
        warnings.warn(
            f"workers differ too much for {self.codec}: {rate:.1%} of the values of parameter "
            f"{tensor} would be decoded wrong. It is sent by the plain code until they agree; "
            "`stats().fallbacks` counts such sends.",
            stacklevel=2,
        )

    def _learning_work(self, learner: Learner, coded: Sequence[Part], small: list[Tensor]) -> Work:
        key = Key(seed=self.seed, step=self.step)
        chunks = self._chunks(coded, None)
        jobs = [
            partial(self._reduce_learning, learner, [piece.part for piece in chunk], key)
            for chunk in chunks
        ]
        return Work(jobs, small, chunks)

    def _reduce_learning(
        self, learner: Learner, parts: Sequence[Part], key: Key, link: Link
    ) -> None:
        """Each part by what its state says: one message of terms, one of raw values."""
        codecs = {part.tensor: learner.codec_for(part) for part in parts}
        raw = [part for part in parts if codecs[part.tensor] is None]
        if raw:
            due = {p.tensor: learner.share_due(p) for p in raw if p.tensor in self.residuals}
            shares = {tensor: share for tensor, share in due.items() if share > 0}
            self._add_shares(raw, shares)
            reduce_joined(link, [part.values for part in raw])
            self._take_shares(raw, shares)
        terms = [part for part in parts if codecs[part.tensor] is not None]
        remarks: dict[int, tuple[float, ...]] = dict.fromkeys(codecs, ())
        if terms:
            each = [codec for codec in codecs.values() if codec is not None]
            pieces = whole([replace(part, residual=self._residual(part)) for part in terms])
            said = collectives.sum_terms(link, each, pieces, key)
            remarks.update(zip((part.tensor for part in terms), said, strict=True))
        learner.learn(link, parts, [remarks[part.tensor] for part in parts])

    def _add_shares(self, parts: Sequence[Part], shares: dict[int, float]) -> None:
        for part in parts:
            if part.tensor in shares:
                part.values.add_(self.residuals[part.tensor], alpha=shares[part.tensor])

    def _take_shares(self, parts: Sequence[Part], shares: dict[int, float]) -> None:
        """A mean that is not finite has delivered nothing; all ranks see the same one."""
        for part in parts:
            if part.tensor in shares and bool(part.values.isfinite().all()):
                self.residuals[part.tensor].mul_(1.0 - shares[part.tensor])

    def _residual(self, part: Part) -> Tensor | None:
        if not self.error_feedback:
            return None
        if part.tensor not in self.residuals:
            zeros = torch.zeros_like(part.values, dtype=torch.float32)
            self.residuals[part.tensor] = zeros
        return self.residuals[part.tensor]
