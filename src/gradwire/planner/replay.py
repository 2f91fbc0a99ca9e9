"""A step replayed: the backward pass, the lanes beside it, and the link that the lanes share.

All workers are alike, so one of them is followed. Three things are scarce:

- compute, one thread: it makes buckets ready, one after the other;
- the cores of this worker, on which compute, lanes and the kernel's own work of sending run. While
  they want more than there is, the cores are shared as a fair scheduler does: nobody gets more
  than the others unless those want less, and no thread or message more than one core. Of what the
  lanes get together the earliest job gets as much as it can use: a stage is about as long as a
  scheduler's slice, so they end one after the other and not all at once;
- the link, whose rate the messages on it share.

A lane is a thread that does one job after the other, and a job is a list of stages. Time goes
from event to event; between two of them every rate is constant, so the result is exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import isinf

from gradwire.planner.stage import Bucket, Replayed, Stage, Uplink

_EPSILON = 1e-12


def replay(
    buckets: Sequence[Bucket],
    uplink: Uplink,
    cores: float,
    *,
    lanes: int = 3,
    dealt: bool = True,
    steps: int = 1,
) -> Replayed:
    """The last of `steps` equal steps.

    dealt: jobs are dealt to the lanes in turn, as ours are; else the next free lane takes one, as
        the threads of gloo do.
    steps: more than one only matters where a shaper saves up what was not sent.
    """
    tokens, found = uplink.burst, Replayed(0.0, 0.0, 0.0, 0.0)
    for _ in range(steps):
        step = _Step(buckets, uplink, cores, lanes, dealt, tokens)
        found, tokens = step.run(), step.tokens
    return found


class _Actor:
    """A thread: what it is doing, and what it has still to do."""

    def __init__(self, queue: deque[tuple[int, deque[Stage]]]) -> None:
        self.queue = queue
        self.job: deque[Stage] | None = None
        self.number = 0
        self.cpu = self.wait = self.left = self.per_byte = 0.0
        self.in_turn = False

    @property
    def is_done(self) -> bool:
        return self.cpu <= _EPSILON and self.wait <= _EPSILON and self.left <= _EPSILON


class _Step:
    def __init__(
        self, buckets: Sequence[Bucket], uplink: Uplink, cores: float, lanes: int, dealt: bool,
        tokens: float,
    ) -> None:  # fmt: skip
        self.uplink, self.cores, self.tokens = uplink, cores, tokens
        self.now = self.compute_end = self.link_s = self.cpu_s = 0.0
        self.buckets = deque(buckets)
        common: deque[tuple[int, deque[Stage]]] = deque()
        self.lanes = [_Actor(deque() if dealt else common) for _ in range(lanes)]
        self.main = _Actor(deque())
        self.jobs = self.over = 0
        self.ended: set[int] = set()
        self.next = 0

    def run(self) -> Replayed:
        self._compute_next()
        while self._settle():
            self._advance()
        return Replayed(self.now, self.compute_end, self.link_s, self.cpu_s)

    def _settle(self) -> bool:
        """Let everyone begin what they can at this moment; False if nothing is left."""
        moved = True
        while moved:
            moved = False
            while self.main.cpu <= _EPSILON and self.buckets:
                self._hand_over()
                moved = True
            for lane in self.lanes:
                moved |= self._begin(lane)
        busy = self.main.cpu > _EPSILON
        return busy or any(lane.job is not None for lane in self.lanes)

    def _compute_next(self) -> None:
        if self.buckets:
            self.main.cpu = self.buckets[0].compute_s

    def _hand_over(self) -> None:
        """A bucket is ready."""
        for job in self.buckets.popleft().jobs:
            self.lanes[self.next].queue.append((self.jobs, deque(job)))
            self.next = (self.next + 1) % len(self.lanes)
            self.jobs += 1
        self.compute_end = self.now
        self._compute_next()

    def _begin(self, lane: _Actor) -> bool:
        """The next stage of a lane, or the next job; did anything happen?"""
        if lane.job is None:
            if not lane.queue:
                return False
            lane.number, lane.job = lane.queue.popleft()
            lane.in_turn = False
        elif not lane.is_done:
            return False
        if lane.in_turn:
            self._end_turn(lane.number)
            lane.in_turn = False
        if not lane.job:
            self._end_turn(lane.number)
            lane.job = None
            return True
        return self._start(lane, lane.job)

    def _start(self, lane: _Actor, job: deque[Stage]) -> bool:
        if job[0].in_turn and self.over < lane.number:
            return False
        stage = job.popleft()
        lane.cpu, lane.wait, lane.left = stage.cpu_s, stage.wait_s, stage.nbytes
        if isinf(self.uplink.rate):  # costs nothing at all, not even the cores
            lane.left = 0.0
        lane.per_byte, lane.in_turn = stage.cpu_per_byte, stage.in_turn
        return True

    def _end_turn(self, number: int) -> None:
        self.ended.add(number)
        while self.over in self.ended:
            self.over += 1

    def _advance(self) -> None:
        """Go to the next event."""
        working = [lane for lane in self.lanes if lane.job is not None and lane.cpu > _EPSILON]
        threads = sorted(working, key=lambda lane: lane.number)
        others = [lane for lane in self.lanes if lane.job is not None and lane.cpu <= _EPSILON]
        waiting = [lane for lane in others if lane.wait > _EPSILON]
        sending = [lane for lane in others if lane.wait <= _EPSILON and lane.left > _EPSILON]
        rate = self.uplink.peak if self.tokens > _EPSILON else self.uplink.rate
        share = rate / len(sending) if sending else 0.0
        wanted = [min(1.0, lane.per_byte * share) for lane in sending]
        computing = int(self.main.cpu > _EPSILON)
        level = min(1.0, _level([1.0] * (len(threads) + computing) + wanted, self.cores))
        speeds = [min(share, level / lane.per_byte) if lane.per_byte else share for lane in sending]
        paces = _dealt_out(level * len(threads), len(threads))
        if computing:
            threads, paces = [*threads, self.main], [*paces, level]
        steps = [lane.cpu / pace for lane, pace in zip(threads, paces, strict=True) if pace > 0]
        steps += [lane.wait for lane in waiting]
        steps += [lane.left / speed for lane, speed in zip(sending, speeds, strict=True)]
        drain = sum(speeds) - self.uplink.rate
        if self.tokens > _EPSILON and drain > 0:
            steps.append(self.tokens / drain)
        self._spend(min(steps), threads, paces, waiting, sending, speeds)

    def _spend(
        self, dt: float, threads: list[_Actor], paces: list[float], waiting: list[_Actor],
        sending: list[_Actor], speeds: list[float],
    ) -> None:  # fmt: skip
        self.now += dt
        for lane, pace in zip(threads, paces, strict=True):
            lane.cpu -= dt * pace
        for lane in waiting:
            lane.wait -= dt
        for lane, speed in zip(sending, speeds, strict=True):
            lane.left = max(lane.left - dt * speed, 0.0)
            if lane.left < 1e-6:  # of a byte
                lane.left = 0.0
        self.link_s += dt if sending else 0.0
        self.cpu_s += dt * sum(paces)
        if self.uplink.burst:
            self.tokens += dt * (self.uplink.rate - sum(speeds))
            self.tokens = min(max(self.tokens, 0.0), self.uplink.burst)


def _dealt_out(total: float, count: int) -> list[float]:
    """`total` cores to threads in their order: each gets as much as it can use."""
    return [max(0.0, min(1.0, total - place)) for place in range(count)]


def _level(demands: Sequence[float], cores: float) -> float:
    """What nobody gets more of, so that all get what they want or the cores are used up."""
    if sum(demands) <= cores:
        return 1.0
    left, level = cores, 0.0
    wanting = sorted(demands)
    for place, demand in enumerate(wanting):
        level = left / (len(wanting) - place)
        if demand > level:
            return level
        left -= demand
    return level
