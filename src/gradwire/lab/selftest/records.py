"""What workers say of a check, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from gradwire.lab.bench import Row

MOST_TOLD = 10
"""Failures of a kernel, or of a codec, in the report."""


@dataclass(frozen=True)
class Failure:
    """A case that went wrong: what was seen, and for a report whatever helps to understand it."""

    case: str
    what: str
    details: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Begun:
    """A worker is about to check a subject: a kernel, or a codec."""

    subject: str
    rank: int


@dataclass(frozen=True)
class Checked:
    """What a worker found; `missing` says why some or all of it is not for this device."""

    subject: str
    rank: int
    cases: int = 0
    failures: tuple[Failure, ...] = ()
    missing: str | None = None


@dataclass(frozen=True)
class Trained:
    """The loss of every step of one worker, and a digest of the weights at the end."""

    subject: str
    rank: int
    losses: tuple[float, ...]
    weights: str


@dataclass(frozen=True)
class Measured:
    """How fast codecs are."""

    rows: tuple[Row, ...]


Said = Begun | Checked | Trained | Measured
Say = Callable[[Said], None]


@dataclass
class Outcome:
    """What one stage of the selftest came to."""

    stage: str
    subjects: set[str] = field(default_factory=set)
    cases: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()

    def failed(self) -> dict[str, list[Failure]]:
        """What failed, by kernel or codec."""
        found: dict[str, list[Failure]] = {}
        for failure in self.failures:
            found.setdefault("/".join(failure.case.split("/")[:2]), []).append(failure)
        return found

    def to_json(self, repeat: Callable[[str], str]) -> dict[str, Any]:
        """For the report; `repeat` says which command runs a case again."""
        told = [each for failures in self.failed().values() for each in failures[:MOST_TOLD]]
        return {
            "stage": self.stage,
            "passed": not self.failures,
            "subjects": len(self.subjects),
            "cases": self.cases,
            "seconds": round(self.seconds, 2),
            "failed": len(self.failures),
            "failures": [asdict(each) | {"repeat": repeat(each.case)} for each in told],
            "missing": self.missing,
            "rows": [row.to_json() for row in self.rows],
        }
