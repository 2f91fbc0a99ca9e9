"""One bucket of gradients to its mean: which parameters are coded, how, and what error stays.

Parameters below `min_numel` values travel raw, in one plain all-reduce: they are most of the
trouble and almost none of the bytes. So do those of a type no codec takes, such as float64.
Residuals are kept by parameter, never by bucket: DDP rebuilds and reorders its buckets. A codec
that learns sends some steps raw, and says how much of a residual these are to deliver.
"""

from __future__ import annotations

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
        collectives.check(codec, self.collective)
        self.error_feedback = not codec.unbiased if error_feedback is None else error_feedback
        self.min_numel = min_numel
        self.seed = seed
        self.step = 0
        self.residuals: dict[int, Tensor] = {}
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
        coded = [replace(part, residual=self._residual(part)) for part in coded]
        key = Key(seed=self.seed, step=self.step)
        collectives.COLLECTIVES[self.collective](self.link, self.codec, coded, key)

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
