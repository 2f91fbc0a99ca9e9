"""How fast codecs are, beside memcpy and beside QSGD in eager torch.

Speeds are in Gvalues/s (10^9 values a second), each the best of many rounds. On a shared machine
disturbances only ever add time, so the fastest round is the nearest to what the code costs. The
codecs take turns: a round of a codec times one memcpy, one encode and one decode-and-accumulate,
and the next codec follows, so that all had the same quiet moments and memcpy as many tries as the
codec it is compared with. That is why every row has a memcpy of its own. Ratios are quotients of
the figures shown.

All buffers are allocated and touched, and all kernels compiled, before the clock starts: in
training they are reused at every step. What a codec allocates for itself inside a call counts.

Of noise nothing can be learned, so a codec that learns is measured by `AdaptiveCodec.examples`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gradwire.codec import Codec
from gradwire.codecs import parse
from gradwire.kernels.cpu import threads
from gradwire.key import Key
from gradwire.lab.steps import steps_of
from gradwire.terminal.output import counted

EAGER_LEVELS, EAGER_BLOCK = 7, 512
"""The eager baseline is the twin of ``qsgd:bits=4``."""
EAGER_EVERY = 4
"""It is slow, so it joins only one of so many rounds. With fewer tries, each long enough to be
disturbed, a busy machine slows it more than the codecs: there, the ratio flatters them."""


@dataclass(frozen=True)
class Setup:
    """One invocation: what is measured, with at least `repeat` rounds and `seconds`."""

    specs: tuple[str, ...]
    numel: int
    threads: int
    dtype: str
    repeat: int
    seconds: float
    seed: int
    device: str = "cpu"


@dataclass(frozen=True)
class Row:
    """One codec; `codec` is the spec as the user typed it."""

    codec: str
    numel: int
    threads: int
    dtype: str
    encode_gvps: float
    decode_gvps: float
    memcpy_gvps: float
    eager_gvps: float
    bits_per_value: float
    nmse: float

    def to_json(self) -> dict[str, Any]:
        """The fields and their ratios."""
        return asdict(self) | {
            "encode_vs_memcpy": self.encode_gvps / self.memcpy_gvps,
            "decode_vs_memcpy": self.decode_gvps / self.memcpy_gvps,
            "encode_vs_eager": self.encode_gvps / self.eager_gvps,
        }


class Timed:
    """Some works that are timed together, and the shortest time of each."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self.works = works
        self.best = [inf] * len(works)
        for work in works:
            work()

    def round(self) -> None:
        """Run each once."""
        self.best = [min(pair) for pair in zip(self.best, map(_seconds, self.works), strict=True)]


@dataclass(frozen=True)
class Subject:
    """A codec that is being measured: memcpy, encode and decode are timed in this order."""

    spec: str
    timed: Timed
    bits_per_value: float
    nmse: float


def eager_qsgd(rows: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """QSGD as most libraries write it: one torch operation after the other, codes in int8.

    `rows` has one block in each row. Every operation is a pass over memory and allocates its
    result, and the codes are not packed below a byte.
    """
    magnitude = rows.abs()
    norm = magnitude.amax(1, keepdim=True)
    scaled = magnitude * (levels / norm)
    lower = scaled.floor()
    up = torch.rand_like(scaled) < scaled - lower
    return norm, ((lower + up) * rows.sign()).to(torch.int8)


class Bench:
    """The data, the buffers, and what is timed on them."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.key = Key(seed=setup.seed)
        codecs = [parse(spec) for spec in setup.specs]
        drawn = _gaussian(setup.numel, setup.seed)
        self.x = drawn.to(setup.device, getattr(torch, setup.dtype))
        self.values = self.x.float()
        self.out = self.values.clone()
        with _threads(setup.threads):
            self.subjects = list(map(self._subject, setup.specs, codecs))
            self.eager = Timed(partial(eager_qsgd, self._blocks(), EAGER_LEVELS))

    def run(self) -> Iterator[float]:
        """Do the rounds; yields after each how much of the whole is done."""
        start, rounds = perf_counter(), 0
        with _threads(self.setup.threads):
            while (done := self._done(rounds, perf_counter() - start)) < 1:
                for timed in self._turns(rounds):
                    timed.round()
                rounds += 1
                yield done

    def rows(self) -> list[Row]:
        """The result, once `run` is through."""
        return list(map(self._row, self.subjects))

    def _done(self, rounds: int, seconds: float) -> float:
        setup = self.setup
        return min(rounds / setup.repeat, seconds / setup.seconds if setup.seconds else 1.0)

    def _turns(self, rounds: int) -> Sequence[Timed]:
        turns = [subject.timed for subject in self.subjects]
        return turns if rounds % EAGER_EVERY else [self.eager, *turns]

    def _subject(self, spec: str, codec: Codec) -> Subject:
        codec, *_ = steps_of(codec, self.setup.numel, self.x.device)
        nbytes = codec.max_nbytes(self.setup.numel)
        room = torch.empty(nbytes, dtype=torch.uint8, device=self.x.device).zero_()
        encode = partial(codec.encode_into, self.x, room, self.key)
        payload = room[: encode()]
        nmse = self._nmse(codec, payload)
        decode = partial(codec.decode_into, payload, self.out, self.key, accumulate=True)
        timed = Timed(self._memcpy, encode, decode)
        return Subject(spec, timed, 8 * payload.numel() / self.setup.numel, nmse)

    def _row(self, subject: Subject) -> Row:
        setup = self.setup
        memcpy, encode, decode = map(self._gvps, subject.timed.best)
        return Row(
            subject.spec, setup.numel, setup.threads, setup.dtype, encode, decode, memcpy,
            self._gvps(self.eager.best[0]), subject.bits_per_value, subject.nmse,
        )  # fmt: skip

    def _memcpy(self) -> None:
        """Copy float32, whatever the type of the gradients; also keeps the sums in `out` small."""
        self.out.copy_(self.values)

    def _nmse(self, codec: Codec, payload: Tensor) -> float:
        """|decoded - x|^2 / |x|^2."""
        codec.decode_into(payload, self.out, self.key)
        return _square(self.out.sub_(self.values)) / _square(self.values)

    def _blocks(self) -> Tensor:
        padding = -self.setup.numel % EAGER_BLOCK
        return torch.nn.functional.pad(self.values, (0, padding)).view(-1, EAGER_BLOCK)

    def _gvps(self, seconds: float) -> float:
        return self.setup.numel / seconds / 1e9


def _gaussian(numel: int, seed: int) -> Tensor:
    try:
        return torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    except RuntimeError:  # torch's word for it
        raise ValueError(
            f"there is no memory for {counted(numel, 'value')}; lower `numel`."
        ) from None


def _seconds(work: Callable[[], object]) -> float:
    _wait()
    start = perf_counter()
    work()
    _wait()
    return perf_counter() - start


def _wait() -> None:
    """Until GPUs have done what was asked of them, if there are any."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def _square(x: Tensor) -> float:
    return float(x.square().sum(dtype=torch.float64))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let torch and the codecs use `count` threads for a while."""
    before = torch.get_num_threads(), threads.get_num_threads()
    torch.set_num_threads(count)
    threads.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        threads.set_num_threads(before[1])
