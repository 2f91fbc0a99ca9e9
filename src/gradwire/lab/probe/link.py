"""What a link costs: latencies, rates, cost curves, and the processor time of sending."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.lab.probe.timing import mean, repeated, sustained
from gradwire.planner.layout import BUCKET_NBYTES
from gradwire.planner.network import Network

STREAMS = 3
SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 21)
MOST_NBYTES = BUCKET_NBYTES
BURSTS, LEAST_BURST = (1 << 18, 1 << 20, 1 << 22), 1 << 16
PAUSE_S = 0.1
"""How long a shaper may save up what is not sent, before its burst is measured."""


class LinkProbe:
    """Measures, step by step; all workers call `run` together."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        groups = [dist.new_group(backend="gloo") for _ in range(STREAMS)]
        self.groups = [group for group in groups if isinstance(group, dist.ProcessGroup)]
        self.rooms = torch.zeros(2, MOST_NBYTES, dtype=torch.uint8)
        self.found: dict[str, Any] = {}
        self.curves: dict[str, list[dict[str, float]]] = {}

    def run(self) -> Iterator[str]:
        """Says after each step what was measured."""
        self._latencies()
        yield "latency"
        self._rates()
        yield "bandwidth"
        self._rings()
        yield "all_reduce"
        self._burst()
        yield "burst"
        self._curves()
        yield "cost curves"
        for group in self.groups:
            dist.destroy_process_group(group)

    def network(self) -> Network:
        """What the model makes of it."""
        names = (
            "rate", "ring_s", "share_s", "exchange_s", "gather_s", "burst", "peak", "ring_rate",
            "half_rate", "send_cpu", "ring_cpu", "half_cpu",
        )  # fmt: skip
        return Network(workers=self.size, **{name: self.found[name] for name in names})

    def _latencies(self) -> None:
        few, share = 64, self.seconds / 30
        group = self.groups[0]
        small = torch.zeros(few, dtype=torch.uint8)
        rows = torch.zeros(self.size * few, dtype=torch.uint8)
        number = torch.zeros(16)
        works: dict[str, Callable[[], object]] = {
            "share_s": lambda: share_rows(rows.view(self.size, few), group),
            "exchange_s": lambda: dist.all_to_all_single(rows, rows.clone(), group=group),
            "gather_s": lambda: dist.all_gather_single(rows, small, group=group),
            "ring_s": lambda: dist.all_reduce(number, group=group),
        }
        for name, work in works.items():
            self.found[name] = repeated(work, share, least=10).wall_s
        self.found["latency_s"] = repeated(self._ping, share, least=10).wall_s / 2

    def _ping(self) -> None:
        """There and back, between the first two."""
        note = torch.zeros(8, dtype=torch.uint8)
        if self.rank == 0:
            dist.send(note, 1, group=self.groups[0])
            dist.recv(note, 1, group=self.groups[0])
        elif self.rank == 1:
            dist.recv(note, 0, group=self.groups[0])
            dist.send(note, 0, group=self.groups[0])

    def _rates(self) -> None:
        """One way and both ways, by one stream and by several, all workers at once."""
        nbytes = self._nbytes_for(0.1)
        for ways in ("one", "both"):
            for streams in (1, STREAMS):
                work = partial(self._stream, nbytes, streams, ways)
                cost = sustained(work, self.seconds / 15)
                self.found[f"{ways}_way_{streams}"] = nbytes / cost.wall_s
        self._lane_rate(nbytes // (self.size - 1), self.seconds / 8)

    def _lane_rate(self, nbytes: int, seconds: float) -> None:
        """As lanes do it: everyone to everyone, in several streams."""
        rooms = [torch.zeros(self.size, nbytes, dtype=torch.uint8) for _ in self.groups]

        def work() -> None:
            works = [
                started
                for rows, group in zip(rooms, self.groups, strict=True)
                for started in begin_sharing(rows, group)
            ]
            for started in works:
                started.wait()

        cost, sent = sustained(work, seconds), STREAMS * (self.size - 1) * nbytes
        self.found["rate"] = sent / cost.wall_s
        self.found["send_cpu"] = cost.cpu_s / sent

    def _stream(self, nbytes: int, streams: int, ways: str) -> None:
        """From each even worker to the next, and back if it is both ways."""
        partner = self.rank ^ 1
        if partner >= self.size:
            return
        both, part, works = ways == "both", nbytes // streams, []
        for place, group in enumerate(self.groups[:streams]):
            out, room = (half[place * part : (place + 1) * part] for half in self.rooms)
            if both or self.rank % 2 == 1:
                works.append(dist.irecv(room, group=group, group_src=partner))
            if both or self.rank % 2 == 0:
                works.append(dist.isend(out, group=group, group_dst=partner))
        for work in works:
            assert work is not None
            work.wait()

    def _rings(self) -> None:
        nbytes = self._nbytes_for(0.2)
        for name, dtype in (("ring", torch.float32), ("half", torch.float16)):
            values = torch.zeros(nbytes // dtype.itemsize, dtype=dtype)
            sent = 2 * (self.size - 1) / self.size * values.nbytes
            work = partial(dist.all_reduce, values, group=self.groups[0])
            cost = sustained(work, self.seconds / 12)
            self.found[f"{name}_rate"] = sent / max(cost.wall_s - self.found["ring_s"], 1e-9)
            self.found[f"{name}_cpu"] = cost.cpu_s / sent
        rates = ("rate", "ring_rate", "half_rate")  # all ways at once; none is above the link's
        self.found["rate"] = max(self.found[name] for name in rates)

    def _burst(self) -> None:
        """What passes after a pause beyond what the rate allows for in that time."""
        beyond = [0.0]
        for nbytes in BURSTS:
            rows = torch.zeros(self.size, nbytes // (self.size - 1), dtype=torch.uint8)
            for _ in range(2):
                time.sleep(PAUSE_S)
                dist.barrier()
                start = time.perf_counter()
                share_rows(rows, self.groups[0])
                seconds = time.perf_counter() - start - self.found["share_s"]
                beyond.append(mean(nbytes - self.found["rate"] * seconds)[0])
        self.found["burst"] = max(beyond) if max(beyond) > LEAST_BURST else 0.0
        self.found["peak"] = max(self.found["rate"], 1 / max(self.found["send_cpu"], 1e-12))

    def _curves(self) -> None:
        for nbytes in SIZES:
            if nbytes * self.size / self.found["rate"] > self.seconds / 20:
                continue
            values = torch.zeros(nbytes // 4)
            rows = torch.zeros(self.size * nbytes, dtype=torch.uint8)
            works: dict[str, Callable[[], object]] = {
                "all_reduce": partial(dist.all_reduce, values),
                "all_to_all": partial(dist.all_to_all_single, rows, rows.clone()),
                "all_gather": partial(dist.all_gather_single, rows, values.view(torch.uint8)),
            }
            for name, work in works.items():
                cost = repeated(work, self.seconds / 80)
                point = {"nbytes": nbytes, "wall_s": cost.wall_s, "cpu_s": cost.cpu_s}
                self.curves.setdefault(name, []).append(point)

    def _nbytes_for(self, seconds: float) -> int:
        """A message that takes about so long, by what is known of the rate so far."""
        if "rate" not in self.found:
            self._lane_rate(1 << 19, self.seconds / 30)
        nbytes = int(min(MOST_NBYTES, max(self.found["rate"] * seconds, 1 << 16)))
        return nbytes - nbytes % (24 * self.size)


def share_rows(rows: Tensor | Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Send the row of this worker's rank to every other, and receive theirs."""
    for work in begin_sharing(rows, group):
        work.wait()


def begin_sharing(rows: Tensor | Sequence[Tensor], group: dist.ProcessGroup) -> list[dist.Work]:
    """The same, under way."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    others = [(rank + hop) % size for hop in range(1, size)]
    works = [dist.irecv(rows[i], group=group, group_src=i) for i in reversed(others)]
    works += [dist.isend(rows[rank], group=group, group_dst=i) for i in others]
    return [work for work in works if work is not None]
