"""Which random numbers an attachment draws: no two that are open at once draw the same.

The open attachments of a process are numbered, and all ranks of one agree on its number. The first
draws from the seed as it is given, any other from a seed that is made of both. `close` gives the
number back, so a run draws the same numbers whatever was run before it and closed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence

SEEDS = 1 << 64
_taken: Counter[int] = Counter()
_counting = threading.Lock()


def check_seed(seed: object) -> None:
    """Refuse what no stream can begin with."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < SEEDS:
        raise ValueError(f"`seed` must be an integer in [0, 2**64), got {seed!r}.")


def open_numbers() -> list[int]:
    """The numbers that attachments of this process have."""
    with _counting:
        return sorted(_taken)


def free_number(taken: Sequence[Iterable[int]]) -> int:
    """The lowest number that is free on every rank, from those that are not.

    >>> free_number([[0, 1], [0, 3]])
    2
    """
    everywhere = set().union(*taken)
    return next(number for number in range(len(everywhere) + 1) if number not in everywhere)


def seed_of(seed: int, number: int) -> int:
    """What stream `number` of `seed` begins with: the seed, then what SplitMix64 makes of it.

    >>> [seed_of(7, number) for number in range(3)]
    [7, 7191089600892374487, 309689372594955804]
    """
    if number == 0:
        return seed
    mixed = (seed + number * 0x9E3779B97F4A7C15) % SEEDS
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % SEEDS
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % SEEDS
    return mixed ^ mixed >> 31


class Stream:
    """That of one attachment, which has `number` until it is closed."""

    def __init__(self, seed: int, number: int) -> None:
        self._given = seed
        self._is_open = True
        self.number = number
        with _counting:
            _taken[number] += 1

    @property
    def seed(self) -> int:
        """What its keys have as a seed."""
        return seed_of(self._given, self.number)

    def become(self, number: int) -> None:
        """Be another one, that of a checkpoint."""
        was_open = self._is_open
        self.close()
        self.number = number
        if was_open:
            self._is_open = True
            with _counting:
                _taken[number] += 1

    def close(self) -> None:
        """Give the number back; a second time it does nothing."""
        if self._is_open:
            self._is_open = False
            with _counting:
                _taken[self.number] -= 1
                if not _taken[self.number]:
                    del _taken[self.number]
