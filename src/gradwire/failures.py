"""How often payloads that depend on each other are decoded wrong, by parameter.

While the rate of a parameter is unknown or too high, its payloads are such as can be decoded alone.
Ranks agree on all of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from gradwire.parts import Part, Slice
from gradwire.route import Route


class Failures:
    """The rates that were seen last, and what they have cost so far."""

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}
        self.expected = 0.0
        self.fallbacks = 0
        self._has_warned = False

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
        for tensor, part in parts.items():
            self._learn_one(route, part, wrong[tensor])

    def _learn_one(self, route: Route, part: Part, wrong: float) -> None:
        rate, known = wrong / part.values.numel(), part.tensor in self.rates
        if not part.alone:
            self.expected += wrong * route.codec.num_dependent(route.world)
        elif known:
            self.fallbacks += 1
        if not route.codec.trusts(rate) and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"workers differ too much for {route.codec}: {rate:.1%} of the values of "
                f"{part.label} would be decoded wrong. It is sent by the plain code until they "
                "agree; `stats().fallbacks` counts such sends.",
                stacklevel=2,
            )
        self.rates[part.tensor] = rate
