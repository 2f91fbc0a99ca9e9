"""What a codec asks of cores and link, for each value and each job; and the stages of its jobs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from gradwire.planner.layout import Chunk
from gradwire.planner.network import Network
from gradwire.planner.stage import Stage


@dataclass(frozen=True)
class Work:
    """One codec among so many workers. The `_s` are seconds of one core for a value.

    Stages of a job, one after the other; what a codec has not is 0::

        ask        statistics, sent to everyone
        first      encode; sent to the owners of shards, or to everyone
        middle     owners decode, average and encode again; sent to everyone
        last       decode

    The `_bytes` are those that a worker sends for a value in each.

    job_s: what a job costs beside its values; stall_s: how long it waits for others to be ready.
    announces: sizes of payloads differ, so they are exchanged before each message.
    whole: parameters are not cut.
    """

    codec: str
    collective: str
    ask_s: float = 0.0
    first_s: float = 0.0
    middle_s: float = 0.0
    last_s: float = 0.0
    job_s: float = 0.0
    stall_s: float = 0.0
    ask_bytes: float = 0.0
    first_bytes: float = 0.0
    middle_bytes: float = 0.0
    announces: bool = False
    in_turn: bool = False
    whole: bool = False
    nmse: float = 0.0

    @property
    def bytes_per_value(self) -> float:
        """All that a worker sends for a value."""
        return self.ask_bytes + self.first_bytes + self.middle_bytes

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)

    def stages(self, chunk: Chunk, net: Network) -> list[Stage]:
        """A job, or what it stands for."""
        if self.collective == "all_reduce":
            return self._ring(chunk, net)
        values, count = chunk.values, chunk.count
        announced = Stage(wait_s=net.gather_s * count * self.announces)
        stages = [Stage(cpu_s=self.job_s * count, wait_s=self.stall_s * count)]
        if self.ask_bytes:
            stages.append(Stage(cpu_s=self.ask_s * values))
            stages.append(_sent(net, net.share_s * count, self.ask_bytes * values))
        stages += [Stage(cpu_s=self.first_s * values), announced]
        latency = net.exchange_s if self.middle_bytes else net.share_s
        first = _sent(net, latency * count, self.first_bytes * values, in_turn=self.in_turn)
        stages.append(first)
        if self.middle_bytes:
            stages += [Stage(cpu_s=self.middle_s * values), announced]
            stages.append(_sent(net, net.share_s * count, self.middle_bytes * values))
        return [*stages, Stage(cpu_s=self.last_s * values)]

    def _ring(self, chunk: Chunk, net: Network) -> list[Stage]:
        """Float32, or float16 as PyTorch's own hook has it, summed by the backend."""
        half = self.codec == HALF
        rate = net.half_rate if half else net.ring_rate
        slower = net.rate / rate if isfinite(net.rate) else 1.0
        sent = Stage(
            wait_s=net.ring_s * chunk.count,
            nbytes=self.first_bytes * chunk.values * slower,
            cpu_per_byte=(net.half_cpu if half else net.ring_cpu) / slower,
        )
        return [
            Stage(cpu_s=self.job_s * chunk.count + self.first_s * chunk.values),
            sent,
            Stage(cpu_s=self.last_s * chunk.values),
        ]


PLAIN, HALF = "plain DDP", "fp16 hook"


def raw(
    name: str, workers: int, itemsize: int = 4, first_s: float = 0.0, last_s: float = 0.0
) -> Work:
    """What is summed by the backend's ring."""
    sent = 2 * (workers - 1) / workers * itemsize
    return Work(name, "all_reduce", first_bytes=sent, first_s=first_s, last_s=last_s)


def summed_by_owners(workers: int, first_s: float = 0.0) -> Work:
    """Small parameters that travel raw and together."""
    sent = 4 * (workers - 1) / workers
    if workers == 2:
        return Work("small", "all_gather", first_bytes=2 * sent, first_s=first_s)
    return Work("small", "two_shot", first_bytes=sent, middle_bytes=sent, first_s=first_s)


def _sent(net: Network, wait_s: float, nbytes: float, in_turn: bool = False) -> Stage:
    return Stage(wait_s=wait_s, nbytes=nbytes, cpu_per_byte=net.send_cpu, in_turn=in_turn)
