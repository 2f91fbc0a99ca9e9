"""How often payloads that depend on each other are decoded wrong, by parameter.

While the rate of a parameter is unknown or too high, its payloads are such as can be decoded alone.
Ranks agree on all of it, so one of them says it for all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from gradwire.codec import Codec
from gradwire.collectives.parts import Part, Slice
from gradwire.reduction.route import Route

NAMES_SHOWN = 4

_logger = logging.getLogger(__name__)


class Failures:
    """The rates that were seen last, and what they have cost so far.

    If this worker `speaks`, it warns once of parameters whose rate is too high: when the next step
    begins, and all that were found in this one are known. Buckets may end in several threads at
    once.
    """

    def __init__(self, *, speaks: bool) -> None:
        self.rates: dict[int, float] = {}
        self.expected = 0.0
        self.fallbacks = 0
        self._speaks = speaks
        self._step = 0
        self._doubts: dict[Codec, dict[str, float]] = {}
        self._lock = threading.Lock()

    def begin(self, step: int) -> None:
        """Take note of the step that is worked on; others are done with."""
        with self._lock:
            if self._doubts and step != self._step and self._speaks:
                self._speaks = False
                for codec, rates in self._doubts.items():
                    _logger.warning(_warning(codec, rates))
            self._step = step

    def is_alone(self, route: Route, part: Part) -> bool:
        """Must the payloads of this part be such as need no others?"""
        return not route.codec.trusts(self.rates.get(part.tensor))

    def learn(
        self,
        route: Route,
        chunks: Sequence[Sequence[Slice]],
        results: Sequence[dict[int, float]],
    ) -> None:
        """Count what went wrong in chunks of a bucket, and remember how likely that is."""
        parts: dict[int, Part] = {}
        wrong: dict[int, float] = {}
        for chunk, rates in zip(chunks, results, strict=True):
            for piece in chunk:
                tensor = piece.part.tensor
                parts[tensor] = piece.part
                wrong[tensor] = wrong.get(tensor, 0.0) + rates[tensor] * piece.numel
        with self._lock:
            for tensor, part in parts.items():
                self._learn_one(route, part, wrong[tensor])

    def _learn_one(self, route: Route, part: Part, wrong: float) -> None:
        rate, known = wrong / part.values.numel(), part.tensor in self.rates
        if not part.alone:
            self.expected += wrong * route.codec.num_dependent(route.world)
        elif known:
            self.fallbacks += 1
        if not route.codec.trusts(rate):
            self._doubts.setdefault(route.codec, {})[part.label] = rate
        self.rates[part.tensor] = rate


def _warning(codec: Codec, rates: dict[str, float]) -> str:
    shown, hidden = list(rates)[:NAMES_SHOWN], len(rates) - NAMES_SHOWN
    names = ", ".join(shown) + (f" and {hidden} more" if hidden > 0 else "")
    return (
        f"{codec}: workers differ too much: up to {max(rates.values()):.1%} of the values of "
        f"{names} would be decoded wrong. The plain code is sent until workers agree; "
        "`stats().fallbacks` counts such sends."
    )
