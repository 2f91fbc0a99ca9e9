"""What was found and decided, as ranks tell each other, in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.planner.auto.facts import Assignment


@dataclass(frozen=True)
class Judged:
    """A plan, what a step with it is predicted to take, and what its messages lose."""

    plan: Assignment
    step_s: float
    error: float

    def to_json(self) -> list[Any]:
        """Ready for JSON."""
        return [self.plan.specs, self.step_s, self.error]

    @classmethod
    def from_json(cls, found: list[Any]) -> Judged:
        """What `to_json` gave."""
        specs, step_s, error = found
        return cls(Assignment.of(dict(specs)), step_s, error)


@dataclass(frozen=True)
class Shortlist:
    """Plans to be tried, the best first, for `timed` steps each, and what they must beat.

    step_s: of the plan in force, which loses `error`; infinite if it may not stay. Of a step,
        `outside_s` is the part that no plan changes.
    best: the best that was looked at, even if it is not worth a try.
    raw_s: what raw steps took when they were last measured; `raw_bias` times the prediction.
    rate: of the link.
    """

    tried: tuple[Judged, ...]
    best: Judged
    step_s: float
    outside_s: float
    error: float
    timed: int
    look_in: int
    raw_s: float
    raw_bias: float
    rate: float

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        tried = [each.to_json() for each in self.tried]
        return {**vars(self), "tried": tried, "best": self.best.to_json()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Shortlist:
        """What `to_json` gave."""
        tried = tuple(map(Judged.from_json, found["tried"]))
        return cls(**{**found, "tried": tried, "best": Judged.from_json(found["best"])})


@dataclass(frozen=True)
class Verdict:
    """The plan from now on, with its error and its steps as measured, and when to look again.

    `seconds` are those of a step with each plan that was tried; the rest is as in the `Shortlist`.
    """

    plan: Assignment
    step_s: float
    error: float
    look_in: int
    raw_s: float
    raw_bias: float
    rate: float
    seconds: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**vars(self), "plan": self.plan.specs}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Verdict:
        """What `to_json` gave."""
        plan, seconds = Assignment.of(dict(found["plan"])), tuple(found["seconds"])
        return cls(**{**found, "plan": plan, "seconds": seconds})
