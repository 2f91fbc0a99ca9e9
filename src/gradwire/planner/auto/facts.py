"""What was measured of a step, a link and codecs, as means over the workers; and a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from gradwire.planner.network import Network


@dataclass(frozen=True)
class Assignment:
    """The spec of the codec of each layer, by number; layers that are not there travel raw."""

    specs: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, specs: Mapping[int, str]) -> Assignment:
        """The same as a value."""
        return cls(tuple(sorted(specs.items())))

    @cached_property
    def by_layer(self) -> dict[int, str]:
        """The specs by number."""
        return dict(self.specs)

    def agreement(self, other: Assignment, values: Mapping[int, int]) -> float:
        """The share of all values that go through the same codec in both."""
        same = sum(n for i, n in values.items() if self.by_layer.get(i) == other.by_layer.get(i))
        return same / max(sum(values.values()), 1)


RAW = Assignment()


@dataclass(frozen=True)
class Arrival:
    """A bucket: ready after `at_s` seconds of a core from the first one on.

    `layers` are those that may be coded, in their order; `rest` values always travel raw.
    """

    at_s: float
    layers: tuple[int, ...]
    rest: int


@dataclass(frozen=True)
class Offer:
    """What a codec would do. `cpu_s` is seconds of a core for a value, of a whole exchange.

    `encode_s` and `decode_s` say how it is divided. By layer: `nbytes`, those of a payload for each
    value, and `nmse`, what a message loses of the energy.
    """

    spec: str
    cpu_s: float
    encode_s: float
    decode_s: float
    nbytes: Mapping[int, float]
    nmse: Mapping[int, float]


@dataclass(frozen=True)
class Facts:
    """A step with the plan in force took `outside_s`, and from its first bucket on `span_s`.

    `values` and `energy` are those of layers that may be coded; `rest_energy` is of all others.
    `cores` are those of one worker. A job has at most `chunk` values, and costs `job_s` seconds of
    a core beside them. `cost_s` is how long measuring took.
    """

    network: Network
    cores: float
    lanes: int
    chunk: int
    job_s: float
    buckets: tuple[Arrival, ...]
    values: Mapping[int, int]
    energy: Mapping[int, float]
    rest_energy: float
    offers: tuple[Offer, ...]
    outside_s: float
    span_s: float
    cost_s: float = 0.0

    @property
    def step_s(self) -> float:
        """A step with the plan in force."""
        return self.outside_s + self.span_s

    @cached_property
    def by_spec(self) -> dict[str, Offer]:
        """The offers by their codecs."""
        return {offer.spec: offer for offer in self.offers}

    @cached_property
    def total_energy(self) -> float:
        """That of the whole gradient."""
        return sum(self.energy.values()) + self.rest_energy

    def lost(self, layer: int, spec: str) -> float:
        """The energy that messages of a layer lose."""
        return self.by_spec[spec].nmse[layer] * self.energy[layer]

    def error(self, plan: Assignment) -> float:
        """What a plan loses of the whole gradient's energy."""
        total = sum(self.lost(layer, spec) for layer, spec in plan.specs)
        return total / self.total_energy if self.total_energy else 0.0


def tally(specs: Iterable[str | None]) -> dict[str | None, int]:
    """How many layers go through each codec, most of them first; None is raw."""
    counts: dict[str | None, int] = {}
    for spec in specs:
        counts[spec] = counts.get(spec, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
