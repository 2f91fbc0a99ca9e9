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
Here whoever decodes counts or estimates what share of values nested payloads get wrong, and as long
as that share is unknown, or above `max_failures`, all workers send the plain code. Derivations and
measured tables: docs/codecs/dithered.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gradwire.adaptive import AdaptiveCodec, Layout, State
from gradwire.codec import Codec, Seen
from gradwire.codecs.coding import check_wire
from gradwire.codecs.dqsg import check_levels, is_number
from gradwire.codecs.ndqsg.lattice import Lattice
from gradwire.codecs.settings import SpelledCodec
from gradwire.kernels.formats.layout import check_block, grain_of

_NAMES_SHOWN = 4


@dataclass(frozen=True)
class Agreement(State):
    """How well workers agree on a parameter: the share of values that nested payloads get wrong."""

    outlives_workers: ClassVar[bool] = False
    failure_rate: float | None = None


@dataclass(frozen=True)
class NDQSG(AdaptiveCodec[Agreement], SpelledCodec):
    """Quantize with subtractive dither; some workers lean on what the others have sent.

    levels: levels on each side of zero, up to the block's largest value (2 to 127).
    ratio: an odd number of levels that a nested worker tells apart, fewer than 2 levels + 1; 0 is
        the largest up to five eighths of that.
    alpha: how much of the difference from the others is sent (above 0, up to 1).
    nested_fraction: the share of workers that are nested; rank 0 never is.
    block: values that share a scale; None, as in the paper, is all of them.
    max_failures: the share of wrong values above which the plain code is sent; 1 is never.
    wire: "zstd", "huffman", "elias" or "packed", as for `DQSG`, of plain and of nested codes.

    >>> import torch, gradwire as gw
    >>> codec = gw.NDQSG(levels=3, block=512, wire="packed")
    >>> near = [torch.linspace(-1, 1, 1000), torch.linspace(-1, 1, 1000) + 0.01]
    >>> mean = gw.simulate(codec.nested, near, gw.Key(seed=1))
    >>> (mean - sum(near) / 2).abs().max() < 1 / 3
    tensor(True)
    >>> [codec.nested.encode(x, gw.Key(rank=rank)).numel() for rank, x in enumerate(near)]
    [387, 262]
    """

    levels: int = 15
    ratio: int = 0
    alpha: float = 1.0
    nested_fraction: float = 0.5
    block: int | None = None
    max_failures: float = 0.001
    wire: str = "zstd"

    unbiased = True  # but for values that are decoded wrong: `max_failures`
    fixed_size = False
    name = "ndqsg"
    state_type: ClassVar[type[State]] = Agreement

    def __post_init__(self) -> None:
        check_levels(self.levels)
        check_block(self.block)
        check_wire(self.wire)
        if self.ratio == 0 and isinstance(self.ratio, int):
            object.__setattr__(self, "ratio", self._default_ratio)
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
    def _default_ratio(self) -> int:
        return max(3, (5 * (2 * self.levels + 1) // 8 - 1) // 2 * 2 + 1)

    def settings(self) -> dict[str, Any]:
        """As for any codec; a ratio that follows from the levels need not be said."""
        found = super().settings()
        if self.ratio == self._default_ratio:
            found.pop("ratio", None)
        return found

    @property
    def grain(self) -> int | None:
        return grain_of(self.block)

    @property
    def feeds_back(self) -> bool:  # type: ignore[override]
        """Payloads that need each other to be decoded do not say what was lost."""
        return self.nested_fraction == 0

    @property
    def plain(self) -> Lattice:
        """What every worker sends while workers differ too much."""
        return self._lattice(nests=False)

    @property
    def nested(self) -> Lattice:
        """What workers send once they agree."""
        return self._lattice(nests=True)

    def _lattice(self, *, nests: bool) -> Lattice:
        return Lattice(
            self.levels, self.ratio, self.alpha, self.nested_fraction, self.block, nests, self.wire
        )

    def trusts(self, failure_rate: float | None) -> bool:
        """Is a share of wrong values, None if unknown, low enough for nested payloads?"""
        return (1.0 if failure_rate is None else failure_rate) <= self.max_failures

    def start(self) -> Agreement:
        return Agreement()

    def codec_for(self, state: Agreement, layout: Layout) -> Codec:
        return self._lattice(nests=self.trusts(state.failure_rate))

    def learn(
        self, state: Agreement, layout: Layout, mean: Tensor, seen: Seen, *, owing: bool
    ) -> Agreement:
        return Agreement(*seen)

    def describe(self, state: Agreement) -> str:
        if state.failure_rate is None:
            return "plain, nothing is known yet"
        code = "nested" if self.trusts(state.failure_rate) else "plain"
        return f"{code}, {state.failure_rate:.2%} of values decoded wrong if nested"

    def examples(self, numel: int) -> tuple[Codec, ...]:
        return self.plain, self.nested

    def counts(self, state: Agreement, seen: Seen, numel: int, world: int) -> dict[str, float]:
        """Values that were probably decoded wrong, and sends of the plain code for that reason."""
        if self.trusts(state.failure_rate):
            (rate,) = seen
            return {"expected_failures": rate * numel * math.floor(world * self.nested_fraction)}
        return {"fallbacks": float(state.failure_rate is not None)}

    def doubts(self, states: Mapping[str, Agreement]) -> str | None:
        rates = {
            name: state.failure_rate
            for name, state in states.items()
            if state.failure_rate is not None and not self.trusts(state.failure_rate)
        }
        if not rates:
            return None
        shown, hidden = list(rates)[:_NAMES_SHOWN], len(rates) - _NAMES_SHOWN
        names = ", ".join(shown) + (f" and {hidden} more" if hidden > 0 else "")
        return (
            f"{self}: workers differ too much: up to {max(rates.values()):.1%} of the values of "
            f"{names} would be decoded wrong. The plain code is sent until workers agree; "
            '`stats().counts["fallbacks"]` counts such sends.'
        )

    def doubts_alone(self) -> str | None:
        if self.trusts(None):
            return None
        return (
            f"{self} learns from step to step how well workers agree, and a single all_reduce has "
            "nothing to go by: it sends the plain code. Use `DQSG`, or `max_failures=1` to send "
            "nested payloads unseen."
        )

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        return self.plain.anatomy(payload, numel)
