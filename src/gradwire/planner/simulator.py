"""A step of many workers who are not alike, message by message.

Every worker has an uplink, a downlink, a core that encodes and one that decodes, each of which
does one thing at a time, in order; buckets become ready as fast as the worker computes. A message
holds the sender's uplink while it is sent, arrives a latency later, and takes the receiver's
downlink at least as long as that needs for it. Nobody adds up what has not arrived from everyone.

Workers send to the next first, then to the one after, and so on. `LANES` buckets may be on their
way at once; whose messages could go first goes first.

With equal links and no codec costs the result is that of `closed_forms`, which a test holds it to.
All workers are handled at once, hop by hop, so a thousand of them take a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradwire.planner.work import Work

Seconds = Any  # an array: one for each worker
LANES = 3


@dataclass(frozen=True)
class Cluster:
    """Bytes a second up and down, and how many times as long each worker computes and codes.

    latency: of a message one way, seconds. message_s: what a message costs its sender beside its
    bytes: a system call, and the start of a transfer.
    """

    up: Any
    down: Any
    latency: float = 0.0
    slower: Any = None
    message_s: float = 0.0

    @property
    def size(self) -> int:
        """How many workers."""
        return len(self.up)

    @property
    def pace(self) -> Any:
        """`slower`, or that nobody is."""
        return np.ones(self.size) if self.slower is None else np.asarray(self.slower)


@dataclass
class Simulated:
    """When the step is over, and how long each resource of the busiest worker worked."""

    step_s: float
    compute_s: float
    up_s: float
    down_s: float
    codec_s: float
    messages_s: float

    @property
    def bottleneck(self) -> str:
        """What was busy for the longest."""
        busy = {
            "compute": self.compute_s, "uplink": self.up_s, "downlink": self.down_s,
            "codecs": self.codec_s, "messages": self.messages_s,
        }  # fmt: skip
        return max(busy, key=lambda name: busy[name])


@dataclass
class _State:
    """When each resource of each worker is free again, and how long it has worked."""

    cluster: Cluster
    up: Any = field(init=False)
    down: Any = field(init=False)
    encoder: Any = field(init=False)
    decoder: Any = field(init=False)
    busy: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        size = self.cluster.size
        self.up, self.down, self.encoder, self.decoder = (np.zeros(size) for _ in range(4))
        self.busy = {name: np.zeros(size) for name in ("up", "down", "codec", "messages")}

    def encode(self, ready: Seconds, seconds: float) -> Seconds:
        """When what was ready is encoded."""
        self.encoder = np.maximum(self.encoder, ready) + seconds * self.cluster.pace
        self.busy["codec"] += seconds * self.cluster.pace
        return self.encoder.copy()

    def decode(self, ready: Seconds, seconds: float) -> Seconds:
        """When what has arrived is decoded."""
        self.decoder = np.maximum(self.decoder, ready) + seconds * self.cluster.pace
        self.busy["codec"] += seconds * self.cluster.pace
        return self.decoder.copy()

    def send(self, ready: Seconds, nbytes: float, hop: int) -> Seconds:
        """Everyone sends to the worker `hop` places on; when each has received."""
        up, down, message_s = self.cluster.up, self.cluster.down, self.cluster.message_s
        start = np.maximum(self.up, ready)
        sent = start + nbytes / up + message_s
        self.up = sent
        first, last = (np.roll(at + self.cluster.latency, hop) for at in (start, sent))
        self.down = np.maximum(np.maximum(self.down, first) + nbytes / down, last)
        self.busy["up"] += nbytes / up
        self.busy["down"] += nbytes / down
        self.busy["messages"] += message_s
        return self.down.copy()

    def to_all(self, ready: Seconds, nbytes: float) -> Seconds:
        """A message of so many bytes from everyone to everyone; when each has received all."""
        arrived = ready
        for hop in range(1, self.cluster.size):
            arrived = np.maximum(arrived, self.send(ready, nbytes, hop))
        return arrived

    def ring(self, ready: Seconds, nbytes: float) -> Seconds:
        """A ring all-reduce of messages of so many bytes."""
        arrived = ready
        for _ in range(2 * (self.cluster.size - 1)):
            arrived = np.maximum(arrived, self.send(arrived, nbytes / self.cluster.size, 1))
        return arrived


def simulate_step(
    cluster: Cluster, buckets: Sequence[tuple[float, float]], work: Work
) -> Simulated:
    """A step whose buckets, of so many values, are ready after so many seconds of compute."""
    state = _State(cluster)
    waiting = [(ready * cluster.pace, values) for ready, values in buckets]
    lanes = [np.zeros(cluster.size) for _ in range(LANES)]
    running: list[tuple[Seconds, Iterator[Seconds]]] = []
    while waiting or running:
        begins = np.maximum(waiting[0][0], lanes[0]) if waiting and lanes else None
        soonest = min(running, key=lambda item: _when(item[0]), default=None)
        if begins is not None and (soonest is None or _when(begins) <= _when(soonest[0])):
            job = _job(state, work, begins, waiting.pop(0)[1])
            lanes.pop(0)
            running.append((next(job), job))
        elif soonest is not None:
            running = [item for item in running if item is not soonest]
            at = next(soonest[1], None)
            if at is None:
                lanes.append(soonest[0])
            else:
                running.append((at, soonest[1]))
    ends = lanes
    compute = buckets[-1][0] * cluster.pace
    return Simulated(
        step_s=float(max(compute.max(), *(end.max() for end in ends))),
        compute_s=float(compute.max()),
        up_s=float(state.busy["up"].max()),
        down_s=float(state.busy["down"].max()),
        codec_s=float(state.busy["codec"].max()) / 2,
        messages_s=float(state.busy["messages"].max()),
    )


def _when(at: Seconds) -> float:
    """When most are ready."""
    return float(at.mean())


def _job(state: _State, work: Work, ready: Seconds, values: float) -> Iterator[Seconds]:
    """Yields when its next messages could be sent, and at last when it is done."""
    n = state.cluster.size
    if work.collective == "all_reduce":
        encoded = state.encode(ready, work.first_s * values)
        yield encoded
        nbytes = work.first_bytes * values * n / (2 * (n - 1))
        yield state.decode(state.ring(encoded, nbytes), work.last_s * values)
        return
    if work.ask_bytes:
        asked = state.encode(ready, work.ask_s * values)
        yield asked
        ready = state.to_all(asked, work.ask_bytes * values / (n - 1))
    encoded = state.encode(ready, work.first_s * values)
    yield encoded
    arrived = state.to_all(encoded, work.first_bytes * values / (n - 1))
    if work.middle_bytes:
        averaged = state.decode(arrived, work.middle_s * values)
        yield averaged
        arrived = state.to_all(averaged, work.middle_bytes * values / (n - 1))
    yield state.decode(arrived, work.last_s * values)
