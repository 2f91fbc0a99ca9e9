"""When a fragment is exchanged, and what an outer step does with the mean of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OuterSettings:
    """The settings of outer steps, as `OuterSteps` takes them and as the lab spells them.

    every: inner steps from one exchange of a fragment to the next, the papers' H.
    lr, momentum: of the outer step, which is Nesterov's; 1 and 0 make it plain averaging.
    feedback: how much of what a worker owes is kept from one exchange to the next; 0 is no error
        feedback. By default all for a biased codec, and none for others.
    fragments: groups of parameters that are exchanged in turn.
    overlap: inner steps that are made while a fragment is on its way.
    """

    every: int = 30
    lr: float = 0.7
    momentum: float = 0.9
    feedback: float | None = None
    fragments: int = 1
    overlap: int = 0

    def __post_init__(self) -> None:
        _check_integer("every", self.every, 1, None)
        _check_integer("fragments", self.fragments, 1, self.every)
        _check_integer("overlap", self.overlap, 0, self.every - 1)
        _check_number("lr", self.lr, 0, None)
        _check_number("momentum", self.momentum, 0, 1)
        if self.feedback is not None:
            _check_number("feedback", self.feedback, 0, 1)

    def due(self, step: int) -> list[int]:
        """The fragments that are exchanged after inner step number `step`, from 1.

        >>> settings = OuterSettings(every=6, fragments=3)
        >>> [settings.due(step) for step in range(1, 7)]
        [[], [0], [], [1], [], [2]]
        """
        ends = [self.every * (i + 1) // self.fragments for i in range(self.fragments)]
        return [i for i, end in enumerate(ends) if (step - end) % self.every == 0]


def _check_integer(name: str, value: Any, least: int, most: int | None) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        upto = "of at least" if most is None else "from"
        allowed = f"{least}" if most is None else f"{least} to {most}"
        why = "" if most is None else ", since a round has `every` steps"
        raise ValueError(f"`{name}` must be an integer {upto} {allowed}{why}, got {value!r}.")


def _check_number(name: str, value: Any, least: float, most: float | None) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < float("inf") or (most is not None and value > most):
        allowed = f"at least {least}, and finite" if most is None else f"from {least} to {most}"
        raise ValueError(f"`{name}` must be {allowed}, got {value!r}.")
