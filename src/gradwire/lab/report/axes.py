"""Axes: from values to places between 0 and 1, and where the ticks are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MOST_TICKS = 6
SLACK = 1e-9  # by which rounding may put the tick at an end outside
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """A stretch from `low` to `high`, linear or logarithmic; shares have the unit %."""

    title: str
    unit: str
    low: float
    high: float
    is_log: bool

    def place(self, value: float) -> float:
        """Where a value is; beyond the ends if it is."""
        low, high, value = (self._warped(each) for each in (self.low, self.high, value))
        return (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values within."""
        few = self._within(decades(self.low, self.high)) if self.is_log else []
        return few if len(few) > 1 else self._within(rounds(self.low, self.high))

    def label(self, tick: float) -> str:
        """Write a tick, whose unit stands in the title.

        >>> Axis("", "s", 0, 1, False).label(2500.0), Axis("", "%", 0, 1, False).label(0.95)
        ('2,500', '95%')
        """
        if self.unit == "%":
            return f"{100 * tick:.6g}%"
        return f"{tick:,.0f}" if tick >= 1000 else f"{tick:.6g}"

    def scale(self) -> dict[str, object]:
        """What a script needs to read values off."""
        return {name: getattr(self, name) for name in ("unit", "low", "high", "is_log")}

    def _within(self, ticks: Iterable[float]) -> list[float]:
        return [tick for tick in ticks if -SLACK <= self.place(tick) <= 1 + SLACK]

    def _warped(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.is_log else value


def axis(
    title: str,
    unit: str,
    values: Iterable[float],
    *,
    is_log: bool = False,
    from_zero: bool = False,
    margin: float = 0.0,
) -> Axis:
    """An axis that holds all the values, with a margin as a share of it at either end."""
    finite = [v for v in values if math.isfinite(v) and (v > 0 or not is_log)] or [1.0]
    low, high = min(finite), max(finite)
    if from_zero:
        low = min(0.0, low)
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low - 0.5, high + 0.5)
    room = margin * (high - low)
    return Axis(title, unit, low - room, high + room, is_log)


def rounds(low: float, high: float) -> list[float]:
    """Multiples of a round step.

    >>> rounds(0, 43)
    [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    """
    least = (high - low) / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(each * power for each in STEPS if each * power >= least * (1 - 1e-9))
    first = math.floor(low / step)
    return [round((first + i) * step, 12) for i in range(math.ceil(high / step) - first + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten, and 2 and 5 of them if there are few.

    >>> decades(3, 400)
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [float(f"{digit}e{power}") for power in range(first, last) for digit in digits]
    return [*ticks, float(f"1e{last}")]
