"""From a network, a model and what codecs cost to the time of a step with each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from gradwire.planner.layout import Chunk, Ready, chunks, coarse, even
from gradwire.planner.network import Network
from gradwire.planner.replay import replay as replay_step
from gradwire.planner.stage import Bucket, Replayed, Stage, Uplink
from gradwire.planner.work import HALF, PLAIN, Work, raw, summed_by_owners

LANES, GLOO_THREADS = 3, 2
SETTLED = 3
"""Steps until a shaper's savings are those of every step."""


@dataclass(frozen=True)
class Model:
    """What is trained: when its buckets are ready, and after how long a step without exchange ends.

    busy: the share of that time in which a core worked, where workers have less than a core each.
    `is_even` if only the number of parameters is known.
    """

    buckets: tuple[Ready, ...]
    compute_s: float
    busy: float | None = None
    is_even: bool = False

    @classmethod
    def of(cls, params: int, compute_s: float) -> Model:
        """A model of which only its size is known."""
        return cls(tuple(even(params, compute_s)), compute_s, is_even=True)

    @property
    def params(self) -> int:
        """Its size."""
        return sum(sum(bucket.sizes) for bucket in self.buckets)


@dataclass(frozen=True)
class Setting:
    """Where a step is taken. `cores` are those of one worker, if all share them evenly.

    raw_s: what a raw bucket costs a core for each value, beside the ring.
    slowdown: how many times as long compute takes while an exchange uses the same memory.
    """

    network: Network
    model: Model
    cores: float
    raw_s: float = 0.0
    slowdown: float = 1.0

    def at_rate(self, rate: float) -> Setting:
        """The same over a link of another rate, whose share that a ring reaches stays."""
        net = self.network
        whole = isfinite(net.rate)
        ring, half = (r / net.rate if whole else 1.0 for r in (net.ring_rate, net.half_rate))
        network = replace(
            net, rate=rate, ring_rate=ring * rate, half_rate=half * rate, peak=max(net.peak, rate)
        )
        return replace(self, network=network)

    @property
    def core_share(self) -> float:
        """What a second of compute takes of a core: it was measured beside all other workers."""
        if self.cores >= 1 or self.model.busy is None:
            return min(1.0, self.cores)
        return min(1.0, self.model.busy)

    def plain(self) -> Work:
        """Plain DDP."""
        return raw(PLAIN, self.network.workers, first_s=self.raw_s)

    def predict(self, work: Work) -> Replayed:
        """A step with a codec, or with what is summed raw."""
        net, model = self.network, self.model
        own = work.codec not in (PLAIN, HALF)
        found = replay_step(
            self._buckets(work),
            Uplink(net.rate, net.burst, net.peak),
            self.cores,
            lanes=LANES if own else GLOO_THREADS,
            dealt=own,
            steps=SETTLED if net.burst else 1,
        )
        return replace(found, step_s=max(found.step_s, _after(found, model)))

    def _buckets(self, work: Work) -> list[Bucket]:
        share = self.core_share * self.slowdown
        found, before, small = [], 0.0, 0
        last = self.model.buckets[-1]
        for ready in self.model.buckets:
            jobs = self._jobs(work, ready)
            small += 0 if work.collective == "all_reduce" else ready.small
            if ready is last and small:
                together = summed_by_owners(self.network.workers, self.raw_s)
                jobs.append(together.stages(Chunk(small), self.network))
            found.append(Bucket((ready.at_s - before) * share, jobs))
            before = ready.at_s
        return found

    def _jobs(self, work: Work, ready: Ready) -> list[Sequence[Stage]]:
        net = self.network
        if work.collective == "all_reduce":
            return [work.stages(Chunk(sum(ready.sizes)), net)]
        if not ready.coded:
            return [self.plain().stages(Chunk(sum(ready.sizes)), net)] if ready.sizes else []
        if self.model.is_even:
            cut = coarse(sum(ready.sizes), net.workers, self.model.params)
        else:
            cut = [
                Chunk(sum(c)) for c in chunks(ready.coded, None if work.whole else 512, net.workers)
            ]
        return [work.stages(chunk, net) for chunk in cut]


def _after(found: Replayed, model: Model) -> float:
    """The backward pass goes on for a moment after the last bucket."""
    rest = model.compute_s - model.buckets[-1].at_s
    return found.compute_s + max(rest, 0.0)


def bytes_of(setting: Setting, work: Work) -> float:
    """Bytes that a worker sends in a step."""
    total = 0.0
    plain = setting.plain()
    for ready in setting.model.buckets:
        values = sum(ready.sizes)
        is_raw = work.collective == "all_reduce" or (not ready.coded and not setting.model.is_even)
        if is_raw:
            total += values * (work if work.collective == "all_reduce" else plain).bytes_per_value
        elif setting.model.is_even:
            total += values * work.bytes_per_value
        else:
            total += sum(ready.coded) * work.bytes_per_value
            total += ready.small * plain.bytes_per_value
    return total


def breakeven(setting: Setting, work: Work, against: Work) -> float | None:
    """The bandwidth, bytes a second, below which `work` makes a shorter step; None: nowhere."""
    low, high = 1e3, 1e12

    def pays(rate: float) -> bool:
        there = setting.at_rate(rate)
        return there.predict(work).step_s < there.predict(against).step_s

    if pays(high):
        return float("inf")
    if not pays(low):
        return None
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if pays(middle) else (low, middle)
    return low
