"""A few steps in which everything is measured, a bit in each of them, so that none waits long."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from itertools import pairwise
from typing import Any

from gradwire.adapters.ddp.auto.agreement import Figures, from_first, means
from gradwire.adapters.ddp.auto.flight import Flight
from gradwire.adapters.ddp.auto.link import measure_link
from gradwire.adapters.ddp.auto.notes import Notes, Samples
from gradwire.adapters.ddp.auto.offers import Tried, job_cost, try_codec
from gradwire.planner.auto.candidates import candidates
from gradwire.planner.auto.decide import shortlist
from gradwire.planner.auto.facts import Arrival, Facts, Offer
from gradwire.planner.auto.records import Shortlist
from gradwire.planner.network import Network
from gradwire.transport.link import Link

WINDOWS, SHORTEST = ((0.25, 5), (1.0, 3)), 2
"""In how many steps is measured, if they take at most so many seconds, and if they take longer."""

ROUNDS, FAST = 3, 2.5e7
"""How often a codec is timed if the link carries at least so many bytes a second; else once."""


class Survey:
    """Measures in the steps of a window; the plan in force stays. All ranks do the same."""

    def __init__(self, flight: Flight) -> None:
        self.samples = Samples(flight.sizes)
        self.is_over = False
        self._flight = flight
        specs = [*candidates(flight.auto.error), *flight.plan.by_layer.values()]
        self._waiting = list(dict.fromkeys(specs))
        self._tried: dict[str, Tried] = {}
        self._steps: list[Notes] = []
        self._left, self._rounds = 0, 1
        self._cost_s = self._job_s = 0.0
        self._link: Figures = {}

    def job(self, link: Link, notes: Notes) -> Shortlist | None:
        """What is done at the end of a step; when the last one is over, what follows from it all.

        None: it is not over, or gradients were such that nothing could be measured.
        """
        start = time.perf_counter()
        self._steps.append(notes)
        if len(self._steps) == 1:
            self._begin(link, notes)
        else:
            self._try_some(link)
        self._cost_s += time.perf_counter() - start
        if self._left:
            return None
        self.is_over = True
        found = means(link, self._figures())
        return _restored(from_first(link, partial(self._decided, found)))

    def _begin(self, link: Link, notes: Notes) -> None:
        """The link; and in how many steps to measure, which depends on how long they take."""
        flight = self._flight
        known = None if flight.verdict is None else flight.verdict.rate
        raw = 8 * sum(numel for bucket in notes.buckets for _, numel in bucket)
        expected = [known or raw / max(notes.span_s, 1e-6), _window(notes.span_s)]
        rate, window = from_first(link, lambda: expected)
        self._link = measure_link(link, flight.links, rate)
        self._rounds = ROUNDS if rate >= FAST else 1
        self._job_s = job_cost(link, self._rounds)
        self._left = window - 1

    def _try_some(self, link: Link) -> None:
        """As many codecs as are left for each of the steps that are left."""
        count = -(-len(self._waiting) // self._left)
        for spec in self._waiting[:count]:
            self._tried[spec] = try_codec(
                spec, self.samples.values, self._flight.sizes, link, self._rounds, self._job_s
            )
        self._waiting = self._waiting[count:]
        self._left -= 1

    def _figures(self) -> dict[str, Sequence[float]]:
        """Everything that this rank has measured."""
        steps, last = self._steps, self._steps[-1]
        alike = [notes.ready for notes in steps if notes.buckets == last.buckets]
        pauses = [after.began - before.resumed for before, after in pairwise(steps)]
        figures: dict[str, Sequence[float]] = {
            **self._link,
            "cores": [self._flight.cores],
            "job_s": [self._job_s],
            "ready": [statistics.median(column) for column in zip(*alike, strict=True)],
            "span_s": [statistics.median_low([notes.span_s for notes in steps])],
            "outside_s": [statistics.median_low(pauses)],
            "rest_energy": [sum(self.samples.rest.values())],
        }
        for spec, tried in self._tried.items():
            figures[f"{spec} seconds"] = [tried.cpu_s, tried.encode_s, tried.decode_s]
            for name in ("lost", "energy", "nbytes"):
                figures[f"{spec} {name}"] = [getattr(tried, name)[i] for i in self._flight.sizes]
        return figures

    def _decided(self, found: dict[str, list[float]]) -> dict[str, Any] | None:
        flight = self._flight
        chosen = shortlist(self._facts(found), flight.auto, flight.verdict)
        return None if chosen is None else chosen.to_json()

    def _facts(self, found: dict[str, list[float]]) -> Facts:
        """The means over all ranks, as the planner takes them."""
        flight, last = self._flight, self._steps[-1]
        sizes, size = flight.sizes, flight.reducer.link.size
        names = {each.name for each in fields(Network)} & set(found)
        network = Network(size, **{name: found[name][0] for name in names},
                          ring_cpu=found["send_cpu"][0])  # fmt: skip
        buckets = [
            Arrival(
                at_s,
                tuple(number for number, _ in bucket if number in sizes),
                sum(numel for number, numel in bucket if number not in sizes),
            )
            for at_s, bucket in zip(found["ready"], last.buckets, strict=True)
        ]
        energies = [found[f"{spec} energy"] for spec in self._tried]
        energy = [sum(column) / len(energies) for column in zip(*energies, strict=True)]
        return Facts(
            network=network,
            cores=found["cores"][0],
            job_s=found["job_s"][0],
            lanes=len(flight.links),
            chunk=flight.reducer.chunk,
            buckets=tuple(buckets),
            values=sizes,
            energy=dict(zip(sizes, self._scaled(energy), strict=True)),
            rest_energy=found["rest_energy"][0],
            offers=tuple(self._offer(spec, found) for spec in self._tried),
            outside_s=found["outside_s"][0],
            span_s=found["span_s"][0],
            cost_s=self._cost_s,
        )

    def _scaled(self, energy: Sequence[float]) -> list[float]:
        """Of whole layers, from that of their samples."""
        pairs = zip(self._flight.sizes.items(), energy, strict=True)
        return [each * n / self.samples.values[i].numel() for (i, n), each in pairs]

    def _offer(self, spec: str, found: dict[str, list[float]]) -> Offer:
        cpu_s, encode_s, decode_s = found[f"{spec} seconds"]
        sizes = self._flight.sizes
        pairs = list(zip(found[f"{spec} lost"], found[f"{spec} energy"], strict=True))
        shares = [lost / energy if energy else None for lost, energy in pairs]
        worst = max((share for share in shares if share is not None), default=0.0)
        nmse = [worst if share is None else share for share in shares]  # a layer without gradients
        nbytes = dict(zip(sizes, found[f"{spec} nbytes"], strict=True))
        return Offer(spec, cpu_s, encode_s, decode_s, nbytes, dict(zip(sizes, nmse, strict=True)))


def _window(span_s: float) -> int:
    return next((steps for seconds, steps in WINDOWS if span_s <= seconds), SHORTEST)


def _restored(found: dict[str, Any] | None) -> Shortlist | None:
    return None if found is None else Shortlist.from_json(found)
