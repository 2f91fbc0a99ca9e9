"""What the exchange of gradients costs with a codec: in real lanes, over the link, on its own."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.adaptive import Layout, State
from gradwire.codecs import parse
from gradwire.codecs.gradiveq import GradiVeQ, Subspace
from gradwire.codecs.gradiveq.slicing import Slicing
from gradwire.collectives.parts import Part
from gradwire.lab.probe.model import Gradients
from gradwire.lab.probe.timing import goes_on, mean
from gradwire.planner.layout import chunks
from gradwire.planner.messages import IMAGE
from gradwire.planner.predict import LANES
from gradwire.reduction.adaptation import Adaptation
from gradwire.reduction.reducer import Reducer, chunk_values
from gradwire.transport import groups
from gradwire.transport.account import Account
from gradwire.transport.lanes import Lanes
from gradwire.transport.link import Link

WARM_UP, LEAST, MOST = 1, 2, 30
TINY, TINY_JOBS, WIDTH = 1 << 14, 6, 512


@dataclass(frozen=True)
class Taken:
    """Of one exchange: seconds by the clock, seconds of a worker's cores, of its stages, bytes."""

    wall_s: float
    cpu_s: float
    encode_s: float
    comm_s: float
    decode_s: float
    nbytes: float


class Exchange:
    """Lanes as an attachment has them, for one codec after the other. All workers call alike."""

    def __init__(self) -> None:
        world = dist.group.WORLD
        assert world is not None
        name: list[Any] = [uuid.uuid4().hex]
        dist.broadcast_object_list(name, 0)
        own = groups.same_members(world, f"gradwire/probe/{name[0]}", LANES)
        self._link = Link(world)
        self._lanes = Lanes([Link(group) for group in own])

    def close(self) -> None:
        """End the lanes."""
        self._lanes.close()

    def measure(
        self, spec: str, gradients: Sequence[Gradients], seconds: float, per_value_s: float
    ) -> dict[str, Any]:
        """The costs of a codec: of as many buckets as there is time for, and of tiny jobs.

        What these differ in is what values cost, and what jobs cost beside them. `per_value_s` is
        what the link takes for a value.
        """
        coded = [each for each in (g.coded() for g in gradients) if each.values.numel()]
        coded = self._affordable(coded, int(seconds / 5 / per_value_s))
        tiny = [_tiny(coded[0]) for _ in range(TINY_JOBS)]
        found = {
            "whole": self._taken(spec, coded, seconds * 0.8),
            "tiny": self._taken(spec, tiny, seconds * 0.2),
        }
        grain = 512 if parse(spec).grain is not None else None
        return {
            "codec": spec,
            "buckets": [each.sizes for each in coded],
            "jobs": sum(len(chunks(each.sizes, grain, self._link.size)) for each in coded),
            "tiny_numel": tiny[0].values.numel(),
            "tiny_jobs": len(tiny),
            **{name: asdict(each) for name, each in found.items()},
        }

    def _affordable(self, gradients: Sequence[Gradients], values: int) -> list[Gradients]:
        """The largest buckets, of so many values or of a job for each lane, whatever is more."""
        values = max(values, LANES * chunk_values(self._link.size))
        found: list[Gradients] = []
        for each in sorted(gradients, key=lambda each: -each.values.numel()):
            if values > 0:
                found.append(each)
            values -= each.values.numel()
        return found

    def _taken(self, spec: str, gradients: Sequence[Gradients], seconds: float) -> Taken:
        reducer = Reducer(self._link, parse(spec))
        rooms = [each.values.clone() for each in gradients]
        parts = _numbered(gradients, rooms)
        taught = _taught(reducer, [part for of_bucket in parts for part in of_bucket])
        rows: list[Taken] = []
        start = time.perf_counter()
        while goes_on(len(rows) - WARM_UP, time.perf_counter() - start, seconds, LEAST, MOST):
            for room, each in zip(rooms, gradients, strict=True):
                room.copy_(each.values)
            for adaptation, states in taught:
                adaptation.states = dict(states)
            rows.append(self._once(reducer, rooms, parts))
        columns = zip(*(vars(row).values() for row in rows[WARM_UP:]), strict=True)
        return Taken(*mean(*(statistics.median(column) for column in columns)))

    def _once(
        self, reducer: Reducer, rooms: Sequence[Tensor], parts: Sequence[Sequence[Part]]
    ) -> Taken:
        dist.barrier()
        before, cpu, start = self._account(), time.process_time(), time.perf_counter()
        reducer.begin_step()
        waiting = [
            reducer.submit(self._lanes, room, own, last=place == len(rooms) - 1)
            for place, (room, own) in enumerate(zip(rooms, parts, strict=True))
        ]
        for each in waiting:
            each.wait()
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        after = self._account()
        names = ("encode_s", "comm_s", "decode_s", "bytes_sent")
        return Taken(
            wall_s, cpu_s, *(getattr(after, name) - getattr(before, name) for name in names)
        )

    def _account(self) -> Account:
        return sum((link.account for link in self._lanes.links), Account())


def _tiny(gradients: Gradients) -> Gradients:
    """A parameter so small that its values hardly cost anything."""
    last = gradients.shapes[0][-1] if len(gradients.shapes[0]) == 2 else WIDTH
    width = min(last, TINY)
    rows = max(1, min(TINY, gradients.values.numel()) // width)
    return Gradients(gradients.values[: rows * width].clone(), ((rows, width),))


def _numbered(gradients: Sequence[Gradients], rooms: Sequence[Tensor]) -> list[list[Part]]:
    """The parts of each room, as an adapter would make them."""
    found: list[list[Part]] = []
    number = 0
    for each, room in zip(gradients, rooms, strict=True):
        pieces = torch.split(room, each.sizes)
        layouts = [Layout.of(torch.empty(shape, device="meta")) for shape in each.shapes]
        pairs = zip(pieces, layouts, strict=True)
        found.append([Part(v, number + i, layout=at) for i, (v, at) in enumerate(pairs)])
        number += len(pieces)
    return found


def _taught(reducer: Reducer, parts: Sequence[Part]) -> list[tuple[Adaptation, dict[int, State]]]:
    """What puts GradiVeQ into its compress phase, by an eighth as many random axes as values."""
    found: list[tuple[Adaptation, dict[int, State]]] = []
    for adaptation in reducer.adaptations:
        if isinstance(adaptation.codec, GradiVeQ):
            least = adaptation.codec.slice
            layouts = {part.tensor: part.layout for part in parts if part.layout is not None}
            states = {n: _subspace(Slicing.of(at, least)) for n, at in layouts.items()}
            found.append((adaptation, dict(states)))
    return found


def _subspace(slicing: Slicing) -> Subspace:
    axes = torch.randn(slicing.size, -(-slicing.size // IMAGE))
    basis = torch.linalg.qr(axes).Q.T.contiguous()  # bits: any axes take as long
    return Subspace("compress", basis=basis, mean=torch.zeros(slicing.count, slicing.size))
