"""How fast a link is, and how it is spelled: `200mbit`, `1gbit`, `50mbit,delay=20ms`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

RATES = {"kbit": 3, "mbit": 6, "gbit": 9}  # powers of ten
DELAYS = {"us": -6, "ms": -3, "s": 0}
RATE_TITLES = {"kbit": "kbit/s", "mbit": "Mbit/s", "gbit": "Gbit/s"}
LEAST_RATE, MOST_RATE, MOST_DELAY = 1e5, 1e12, 10.0
_NUMBER = r"(\d+(?:\.\d+)?)"
_SPELLING = re.compile(rf"{_NUMBER}(kbit|mbit|gbit)(?:,delay={_NUMBER}(us|ms|s))?")


@dataclass(frozen=True)
class Shape:
    """What a worker's link carries, in bits a second, and how long a packet is under way."""

    rate: float
    delay: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read a link as the command line spells it.

        >>> Shape.parse("50mbit,delay=20ms")
        Shape(rate=50000000.0, delay=0.02)
        """
        found = _SPELLING.fullmatch(text.strip().lower())
        if found is None:
            raise ValueError(
                "a link must be a rate and, if you like, a delay each way, such as 200mbit, 1gbit "
                f"or 50mbit,delay=20ms; got {text!r}."
            )
        rate, rate_unit, delay, delay_unit = found.groups()
        shape = cls(
            float(f"{rate}e{RATES[rate_unit]}"),
            float(f"{delay}e{DELAYS[delay_unit]}") if delay else 0.0,
        )
        if not LEAST_RATE <= shape.rate <= MOST_RATE or shape.delay > MOST_DELAY:
            raise ValueError(
                "a link must carry from 100kbit to 1000gbit, with a delay of at most 10s; "
                f"got {text!r}."
            )
        return shape

    def __str__(self) -> str:
        """As `parse` reads it.

        >>> str(Shape(2.5e9)), str(Shape(5e7, 0.02))
        ('2.5gbit', '50mbit,delay=20ms')
        """
        delay = f",delay={''.join(_in_units(self.delay, DELAYS))}" if self.delay else ""
        return "".join(_in_units(self.rate, RATES)) + delay

    @property
    def title(self) -> str:
        """In words.

        >>> Shape(2e8).title, Shape(5e7, 0.02).title
        ('200 Mbit/s', '50 Mbit/s, 20 ms each way')
        """
        figure, unit = _in_units(self.rate, RATES)
        delay = f", {' '.join(_in_units(self.delay, DELAYS))} each way" if self.delay else ""
        return f"{figure} {RATE_TITLES[unit]}{delay}"


def _in_units(value: float, units: Mapping[str, int]) -> tuple[str, str]:
    """Write a value in the largest unit that it fills, or else in the smallest there is."""
    smallest, *larger = units
    unit = next((unit for unit in reversed(larger) if value >= 10.0 ** units[unit]), smallest)
    return f"{value / 10.0 ** units[unit]:.6g}", unit
