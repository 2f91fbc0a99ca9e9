"""The part of a checkpoint that only outer steps have.

What all workers agree on has common keys, and what one of them has is under its rank, as in any
state of gradwire (`reduction/checkpoint.py`)::

    outer: inner_step, weights, velocity, exchanged, flights     equal on every rank
    rank1: before                                                of rank 1

`flights` are the exchanges that are on their way, with their means: whoever saves waits for these.
`before` are the weights that each of them was taken from. Both are bytes, because there may be none
of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradwire.algorithms.outer.flight import Flight, landed
from gradwire.algorithms.outer.fragments import Fragment
from gradwire.reduction.checkpoint import pack, unpack

_SHARED = ("inner_step", "weights", "velocity", "exchanged", "flights")


@dataclass
class Course:
    """Where outer steps stand: inner steps so far, the fragments, and those on their way."""

    fragments: Sequence[Fragment]
    flights: list[Flight]
    step: int = 0

    def save(self) -> dict[str, Any]:
        """What is equal on every rank."""
        return {
            "inner_step": self.step,
            "weights": {name: each.clone() for name, each in self._by_name("weights").items()},
            "velocity": {name: each.clone() for name, each in self._by_name("velocity").items()},
            "exchanged": [each.exchanged for each in self.fragments],
            "flights": pack({"flights": [self._saved(flight) for flight in self.flights]}),
        }

    def save_own(self) -> bytes:
        """What only this worker knows: of each flight, the weights it began with."""
        return pack({"before": [flight.before for flight in self.flights]})

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse what `save` has not saved of this model with these fragments."""
        missing = [key for key in _SHARED if key not in state.get("outer", {})]
        if missing:
            raise ValueError(
                f"this is no state of outer steps: it has no {missing[0]!r}; pass what "
                "`outer.state_dict()` gave."
            )
        saved = state["outer"]
        for what in ("weights", "velocity"):
            ours = {name: tuple(each.shape) for name, each in self._by_name(what).items()}
            theirs = {name: tuple(each.shape) for name, each in saved[what].items()}
            if odd := sorted(
                name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)
            ):
                raise ValueError(f"the state is of another model: {odd[0]!r} differs in {what}.")
        if len(saved["exchanged"]) != len(self.fragments):
            raise ValueError(
                f"the state has {len(saved['exchanged'])} fragments, but there are "
                f"{len(self.fragments)} here; give `fragments={len(saved['exchanged'])}`."
            )

    def load(self, saved: Mapping[str, Any], own: bytes | None) -> None:
        """Stand where `save` was called; without what this worker knew, take agreed weights."""
        self.step = saved["inner_step"]
        for what in ("weights", "velocity"):
            for name, vector in self._by_name(what).items():
                vector.copy_(saved[what][name])
        for fragment, step in zip(self.fragments, saved["exchanged"], strict=True):
            fragment.exchanged = step
        flights = unpack(saved["flights"])["flights"]
        before = [None] * len(flights) if own is None else unpack(own)["before"]
        self.flights[:] = [
            Flight(self.fragments[index], lands, weights, landed(mean))
            for (index, lands, mean), weights in zip(flights, before, strict=True)
        ]

    def _by_name(self, what: str) -> dict[str, Tensor]:
        """Views of the vectors of all fragments; a buffer has no velocity."""
        return {
            slot.tensor.name: slot.of(getattr(fragment, what))
            for fragment in self.fragments
            for slot in fragment.slots
            if what == "weights" or slot.tensor.is_trained
        }

    def _saved(self, flight: Flight) -> tuple[int, int, Tensor | None]:
        return self.fragments.index(flight.fragment), flight.lands, flight.mean.wait()
