"""One bucket of gradients to its mean: which parameters are coded, how, and what error stays.

Parameters below `min_numel` values travel raw, in one plain all-reduce: they are most of the
trouble and almost none of the bytes. So do those of a type no codec takes, such as float64.
Residuals are kept by parameter, never by bucket: DDP rebuilds and reorders its buckets. So are
failure rates, of codecs whose payloads depend on each other: while one is unknown or too high, the
payloads of that parameter are such as can be decoded alone.
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

    def is_coded(self, values: Tensor) -> bool:
        """Does the codec take this gradient, or does it travel raw?"""
        if isinstance(self.codec, Identity) and self.collective == "all_reduce":
            return False
        return values.numel() >= self.min_numel and values.dtype in FLOAT_DTYPES

    def reduce(self, bucket: Tensor, parts: Sequence[Part]) -> None:
        """Replace `bucket`, which `parts` tile, by its mean over the workers."""
        coded = [part for part in parts if self.is_coded(part.values)]
        raw = [part.values for part in parts if not self.is_coded(part.values)]
        if not coded:
            self._reduce_raw(bucket)
            return
        if raw:
            joined = torch.cat(raw)
            self._reduce_raw(joined)
            means = torch.split(joined, [values.numel() for values in raw])
            for values, mean in zip(raw, means, strict=True):
                values.copy_(mean)
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

    def _residual(self, part: Part) -> Tensor | None:
        if not self.error_feedback:
            return None
        if part.tensor not in self.residuals:
            zeros = torch.zeros_like(part.values, dtype=torch.float32)
            self.residuals[part.tensor] = zeros
        return self.residuals[part.tensor]
