"""How long a step will take if each layer goes through a codec of its own.

The step of `planner/replay.py`, with the jobs that the reducer would make of every bucket: those of
a codec together, cut into chunks, and what travels raw beside them gathered until it is worth a
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gradwire.codecs import parse
from gradwire.planner.auto.facts import Arrival, Assignment, Facts, Offer
from gradwire.planner.layout import Chunk, cut
from gradwire.planner.rates import Rates, work_of
from gradwire.planner.replay import replay
from gradwire.planner.stage import Bucket, Stage, Uplink
from gradwire.planner.work import PLAIN, Work, raw

Job = Sequence[Stage]


@dataclass(frozen=True)
class Forecast:
    """Predicts from facts."""

    facts: Facts

    def step_s(self, plan: Assignment) -> float:
        """Seconds of a step."""
        return self.facts.outside_s + self.span_s(plan)

    def span_s(self, plan: Assignment) -> float:
        """Seconds from the first bucket to the last mean."""
        buckets, before, waiting = [], 0.0, 0
        for place, arrival in enumerate(self.facts.buckets):
            jobs, waiting = self._jobs(plan, arrival, waiting)
            is_last = place == len(self.facts.buckets) - 1
            if waiting and (is_last or waiting >= self.facts.chunk):
                jobs, waiting = [*jobs, self._raw_job(waiting)], 0
            buckets.append(Bucket(max(arrival.at_s - before, 0.0), jobs))
            before = arrival.at_s
        uplink = Uplink(self.facts.network.rate)
        return replay(buckets, uplink, self.facts.cores, lanes=self.facts.lanes).step_s

    def costs(self, layer: int, spec: str | None) -> tuple[float, float]:
        """Seconds that a layer takes of the link, and of a core."""
        net, values = self.facts.network, self.facts.values[layer]
        if spec is None:
            nbytes = self._raw.bytes_per_value * values
            return nbytes / net.ring_rate, net.ring_cpu * nbytes
        nbytes = self._work(spec, [layer]).bytes_per_value * values
        cpu_s = self.facts.by_spec[spec].cpu_s * values
        return nbytes / net.rate, cpu_s + net.send_cpu * nbytes

    def _jobs(self, plan: Assignment, arrival: Arrival, waiting: int) -> tuple[list[Job], int]:
        """The jobs of a bucket, and how many raw values wait for others after it."""
        groups: dict[str, list[int]] = {}
        for layer in arrival.layers:
            if spec := plan.by_layer.get(layer):
                groups.setdefault(spec, []).append(layer)
        coded = {layer for group in groups.values() for layer in group}
        loose = arrival.rest
        loose += sum(self.facts.values[i] for i in arrival.layers if i not in coded)
        jobs = [job for spec, group in groups.items() for job in self._coded_jobs(spec, group)]
        if jobs:
            return jobs, waiting + loose
        return [self._raw_job(loose)] if loose else [], waiting

    def _coded_jobs(self, spec: str, group: Sequence[int]) -> list[Job]:
        sizes = [self.facts.values[layer] for layer in group]
        dealt = cut(sizes, parse(spec).grain, -(-sum(sizes) // self.facts.chunk))
        work = self._work(spec, group)
        return [work.stages(Chunk(sum(chunk)), self.facts.network) for chunk in dealt if chunk]

    def _raw_job(self, values: int) -> Job:
        return self._raw.stages(Chunk(values), self.facts.network)

    @cached_property
    def _raw(self) -> Work:
        return raw(PLAIN, self.facts.network.workers)

    @cached_property
    def _works(self) -> dict[str, tuple[Work, float]]:
        """By spec, what is done for a value, and the bytes of a payload that this is meant for."""
        return {offer.spec: self._measured(offer) for offer in self.facts.offers}

    def _measured(self, offer: Offer) -> tuple[Work, float]:
        values = self.facts.values
        nbytes = sum(offer.nbytes[i] * n for i, n in values.items()) / max(sum(values.values()), 1)
        rates = Rates(offer.spec, offer.encode_s, offer.decode_s, 0.0, 0.0, 0.0, nbytes, 0.0)
        work = work_of(rates, self.facts.network.workers, self.facts.job_s)
        expected = work.ask_s + work.first_s + work.middle_s + work.last_s
        scale = offer.cpu_s / expected if expected else 0.0
        scaled = replace(
            work,
            ask_s=work.ask_s * scale,
            first_s=work.first_s * scale,
            middle_s=work.middle_s * scale,
            last_s=work.last_s * scale,
        )
        return scaled, nbytes

    def _work(self, spec: str, group: Sequence[int]) -> Work:
        """What is done for a value of these layers, which may take more bytes than others."""
        work, usual = self._works[spec]
        offer, values = self.facts.by_spec[spec], self.facts.values
        nbytes = sum(offer.nbytes[i] * values[i] for i in group)
        wider = nbytes / sum(values[i] for i in group) / usual
        return replace(
            work,
            first_bytes=work.first_bytes * wider,
            middle_bytes=work.middle_bytes * wider,
        )
