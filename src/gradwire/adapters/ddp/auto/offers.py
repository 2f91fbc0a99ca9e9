"""What a codec would cost and lose: samples of real gradients go through it, all ranks at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.adapters.ddp.auto.notes import energy
from gradwire.codec import Codec
from gradwire.codecs import parse
from gradwire.codecs.qsgd import QSGD
from gradwire.collectives.parts import Part, whole
from gradwire.key import Key
from gradwire.reduction.route import Route
from gradwire.transport.link import Link

FEW = 512


@dataclass
class Tried:
    """Seconds of a core for a value, `lost` and `energy` of the samples, bytes a value by layer."""

    cpu_s: float = 0.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    lost: dict[int, float] = field(default_factory=dict)
    energy: dict[int, float] = field(default_factory=dict)
    nbytes: dict[int, float] = field(default_factory=dict)


def try_codec(
    spec: str,
    samples: Mapping[int, Tensor],
    sizes: Mapping[int, int],
    link: Link,
    rounds: int,
    job_s: float,
) -> Tried:
    """Reduce the samples, once to see what is lost, and `rounds` times to take the time.

    `sizes` are those of whole layers; `job_s` is what a job costs beside its values.
    """
    codec, found = parse(spec), Tried()
    route = Route.of(codec, link.size)
    route.reduce(link, whole([_watched(codec, i, x, found) for i, x in samples.items()]), Key())
    encode_s, decode_s = link.account.encode_s, link.account.decode_s
    cpu_s = _cpu_s(route, samples, link, rounds)
    numel = sum(x.numel() for x in samples.values())
    found.cpu_s = max(cpu_s - job_s, cpu_s / 2) / numel
    found.encode_s = (link.account.encode_s - encode_s) / numel / rounds
    found.decode_s = (link.account.decode_s - decode_s) / numel / rounds
    found.energy = {i: energy(x) for i, x in samples.items()}
    found.nbytes = {i: _nbytes(codec, x, sizes[i]) for i, x in samples.items()}
    return found


def job_cost(link: Link, rounds: int) -> float:
    """Seconds of a core for a job of next to no values: Python, and the calls of the backend."""
    route = Route.of(QSGD(), link.size)
    return _cpu_s(route, {0: torch.zeros(FEW)}, link, rounds + 1)


def _cpu_s(route: Route, samples: Mapping[int, Tensor], link: Link, rounds: int) -> float:
    """Of an exchange, the best of some: what else a machine does may double a single one."""
    found = []
    for _ in range(rounds):
        parts = [Part(x.clone(), i, codec=route.codec) for i, x in samples.items()]
        start = time.thread_time()
        route.reduce(link, whole(parts), Key())
        found.append(time.thread_time() - start)
    return min(found)


def _watched(codec: Codec, layer: int, x: Tensor, found: Tried) -> Part:
    found.lost[layer] = 0.0

    def watch(start: int, source: Tensor, lost: Tensor) -> None:
        found.lost[layer] += energy(lost)

    return Part(x.clone(), layer, codec=codec, watch=watch)


def _nbytes(codec: Codec, x: Tensor, numel: int) -> float:
    """Bytes for each value of a payload; of the sample's, where they depend on what is encoded."""
    if codec.fixed_size:
        return codec.max_nbytes(numel) / numel
    room = torch.empty(codec.max_nbytes(x.numel()), dtype=torch.uint8)
    return codec.encode_into(x, room, Key()) / x.numel()
