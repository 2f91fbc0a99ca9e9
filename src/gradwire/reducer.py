"""One bucket of gradients to its mean: which parameters are coded, how, and what error stays.

Parameters below `min_numel` values travel raw, in one plain all-reduce: they are most of the
trouble and almost none of the bytes. So do those of a type no codec takes, such as float64.
Residuals are kept by parameter, never by bucket: DDP rebuilds and reorders its buckets. So are
failure rates, of codecs whose payloads depend on each other: while one is unknown or too high, the
payloads of that parameter are such as can be decoded alone.
A codec that learns sends some steps raw, and says how much of a residual these are to deliver.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradwire import collectives
from gradwire.codec import FLOAT_DTYPES, Codec, Key
from gradwire.codecs.cast import Identity
from gradwire.learner import Learner
from gradwire.learning import LearningCodec
from gradwire.link import Link
from gradwire.parts import Part


class Reducer:
    """Reduces buckets over one link. All ranks must make the same calls in the same order."""

    def __init__(
        self,
        link: Link,
        codec: Codec,
        *,
        collective: str | None = None,
        error_feedback: bool | None = None,
        min_numel: int = 10_000,
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
            self.learner = Learner(link, codec, owing=self.error_feedback)

    def is_coded(self, values: Tensor) -> bool:
        """Does the codec take this gradient, or does it travel raw?"""
        if isinstance(self.codec, Identity) and self.collective == "all_reduce":
            return False
        return values.numel() >= self.min_numel and values.dtype in FLOAT_DTYPES

    def reduce(self, bucket: Tensor, parts: Sequence[Part]) -> None:
        """Replace `bucket`, which `parts` tile, by its mean over the workers."""
        if self.learner is not None:
            self._reduce_learning(self.learner, bucket, parts)
            return
        coded = [part for part in parts if self.is_coded(part.values)]
        raw = [part.values for part in parts if not self.is_coded(part.values)]
        if not coded:
            self._reduce_raw(bucket)
            return
        self._reduce_raw_parts(raw)
        coded = [
            replace(part, residual=self._residual(part), alone=self._is_alone(part))
            for part in coded
        ]
        key = Key(seed=self.seed, step=self.step)
        rates = collectives.COLLECTIVES[self.collective](self.link, self.codec, coded, key)
        self._learn(coded, rates)

    def _is_alone(self, part: Part) -> bool:
        return not self.codec.trusts(self.failure_rates.get(part.tensor))

    def _learn(self, parts: Sequence[Part], rates: dict[int, float]) -> None:
        """Count what went wrong, and remember how likely that is. Ranks agree on all of it."""
        for part in parts:
            if part.tensor not in rates:
                continue
            rate, known = rates[part.tensor], part.tensor in self.failure_rates
            dependent = self.codec.num_dependent(self.link.size)
            if not part.alone:
                self.expected_failures += rate * part.values.numel() * dependent
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

    def _reduce_raw(self, values: Tensor) -> None:
        """The mean as plain DDP takes it: product, then sum, in the gradient's own type."""
        with self.link.account.timed("encode"):
            values.mul_(1.0 / self.link.size)
        self.link.account.message(values.numel(), values.numel() * values.element_size())
        self.link.all_reduce(values)

    def _reduce_raw_parts(self, raw: Sequence[Tensor]) -> None:
        """The same in one message for several."""
        if raw:
            joined = torch.cat(list(raw))
            self._reduce_raw(joined)
            means = torch.split(joined, [values.numel() for values in raw])
            for values, mean in zip(raw, means, strict=True):
                values.copy_(mean)

    def _reduce_learning(self, learner: Learner, bucket: Tensor, parts: Sequence[Part]) -> None:
        """Each part by what its state says: one message of terms, one of raw values."""
        learned = [part for part in parts if self.is_coded(part.values)]
        codecs = {part.tensor: learner.codec_for(part) for part in learned}
        terms = [part for part in learned if codecs[part.tensor] is not None]
        raw = [part for part in parts if codecs.get(part.tensor) is None]
        due = {p.tensor: learner.share_due(p) for p in raw if p.tensor in self.residuals}
        shares = {tensor: share for tensor, share in due.items() if share > 0}
        self._add_shares(raw, shares)
        if terms:
            self._reduce_raw_parts([part.values for part in raw])
        else:
            self._reduce_raw(bucket)
        self._take_shares(raw, shares)
        remarks: dict[int, tuple[float, ...]] = dict.fromkeys(codecs, ())
        if terms:
            each = [codec for codec in codecs.values() if codec is not None]
            coded = [replace(part, residual=self._residual(part)) for part in terms]
            key = Key(seed=self.seed, step=self.step)
            said = collectives.sum_terms(self.link, each, coded, key)
            remarks.update(zip((part.tensor for part in terms), said, strict=True))
        learner.learn(learned, [remarks[part.tensor] for part in learned])

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
