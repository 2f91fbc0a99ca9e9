"""What a server does with late gradients, and how much it bears with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

INVERSE, EXCESS = "inverse", "excess"
DAMPINGS = (EXCESS, INVERSE, None)
MEMORY = 100
"""Pushes over which delays are averaged to know what is usual."""


@dataclass(frozen=True)
class AsyncSettings:
    """The settings of a server, as `AsyncServer` takes them and as the lab spells them.

    max_delay: a gradient does not count if the server has made more steps since the weights that it
        was computed at.
    damping: what a gradient that comes d steps late is multiplied by. "excess": 1 if others are as
        late on average, and (1 + u) / (1 + d) if only u steps. "inverse": 1 / (1 + d). None: 1.
    lookahead: the share of the way that momentum will have taken the weights by the time a gradient
        is back; they are sent as if they had gone it. 0: as they are.
    clip: the largest norm of a gradient; a longer one is made as short. None: it is as it is.
    """

    max_delay: int = 100
    damping: str | None = EXCESS
    clip: float | None = None
    lookahead: float = 1.0

    def __post_init__(self) -> None:
        check_count("max_delay", self.max_delay, 0)
        if self.damping not in DAMPINGS:
            names = ", ".join(map(repr, DAMPINGS))
            raise ValueError(f"`damping` must be one of {names}, got {self.damping!r}.")
        if self.clip is not None:
            check_positive("clip", self.clip)
        if not isinstance(self.lookahead, int | float) or not 0 <= self.lookahead <= 1:
            raise ValueError(f"`lookahead` must be from 0 to 1, got {self.lookahead!r}.")

    def factor(self, delay: int, usual: float) -> float:
        """What a gradient so late is multiplied by, if delays are `usual` on average.

        >>> [round(AsyncSettings().factor(delay, usual=3.0), 2) for delay in (0, 3, 7, 39)]
        [1.0, 1.0, 0.5, 0.1]
        """
        if self.damping is None:
            return 1.0
        return min(1.0, (1 + (usual if self.damping == EXCESS else 0.0)) / (1 + delay))

    def reach(self, usual: float, momentum: float) -> float:
        """How many times its last step momentum will take the model, while a gradient is away.

        >>> round(AsyncSettings().reach(usual=3.2, momentum=0.9), 3)
        2.439
        """
        reach = 0.0
        for _ in range(round(usual)):
            reach = momentum * (1 + reach)
        return self.lookahead * reach


@dataclass
class Usual:
    """The mean delay of the last pushes or so."""

    mean: float = 0.0
    seen: int = 0

    def add(self, delay: int) -> None:
        """Count one more."""
        self.seen += 1
        self.mean += (delay - self.mean) / min(self.seen, MEMORY)


def check_limits(max_workers: Any, timeout: Any) -> None:
    """Refuse a server that could serve nobody."""
    check_count("max_workers", max_workers, 1)
    check_positive("timeout", timeout)


def check_count(name: str, value: Any, least: int) -> None:
    """Refuse what is no integer of at least so much."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}.")


def check_positive(name: str, value: Any) -> None:
    """Refuse what is no positive, finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be positive and finite, got {value!r}.")
