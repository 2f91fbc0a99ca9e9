"""One bucket of gradients to its mean: which parameters are coded, how, and what error stays.

The coded parameters of a bucket are sorted by codec and cut into chunks, which can be reduced one
beside the other. Others travel raw: small ones, those a policy skips, those of a type no codec
takes, such as float64, and all of them in warm-up steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.codec import FLOAT_DTYPES, Codec
from gradwire.codecs.cast import Identity
from gradwire.collectives.collective import Sighting
from gradwire.collectives.parts import Due, Part, Slice, cut, whole
from gradwire.key import Key
from gradwire.reduction.adaptation import Adaptation
from gradwire.reduction.policy import MIN_NUMEL
from gradwire.reduction.residuals import Residuals
from gradwire.reduction.route import Route
from gradwire.reduction.small import SmallParts, reduce_raw, reduce_sparse
from gradwire.transport.device import Taken, nothing
from gradwire.transport.executor import Executor, Job, give_back, join
from gradwire.transport.link import Link, LinkError

CHUNK = 1 << 20
"""Values that a job sends to another worker: a chunk between two, a share of it among more.

Few, so that while one chunk is on the wire another is encoded; but each costs the latency of some
messages, so not too few. At 1 Gbit/s half as many took 5 % longer among four workers and a quarter
a third longer; four times as many took 14 % longer between two.
"""


def chunk_values(world: int) -> int:
    """The most values of a job among `world` workers, unless it is said."""
    return CHUNK * (world if world > 2 else 1)


class Reducer:
    """Reduces buckets over links like `link`. All ranks must ask for the same in the same order.

    `codecs` has the parameters, by number, that do not go through `codec`, but through another one
    or, if that is None, raw. `collective` is the one for `codec`; others get what suits them.
    """

    def __init__(
        self,
        link: Link,
        codec: Codec,
        *,
        residuals: Residuals | None = None,
        collective: str | None = None,
        error_feedback: bool | None = None,
        min_numel: int = MIN_NUMEL,
        codecs: Mapping[int, Codec | None] | None = None,
        warmup_steps: int = 0,
        chunk: int | None = None,
        seed: int = 0,
    ) -> None:
        self.link = link
        self.residuals = Residuals(link.device) if residuals is None else residuals
        self._options: dict[str, Any] = {
            "error_feedback": error_feedback, "speaks": link.rank == 0, "device": link.device,
        }  # fmt: skip
        self.route = Route.of(codec, link.size, collective=collective, **self._options)
        self.routes = {codec: self.route}
        self._codecs: dict[int, Codec | None] = {}
        self.adopt(codecs or {})
        self.min_numel = min_numel
        self.warmup_steps = warmup_steps
        self.seed = seed
        self.step = 0
        self.chunk = chunk_values(link.size) if chunk is None else chunk
        self._small = SmallParts()
        self.prepare: Callable[[], None] = nothing  # every job calls it before it uses residuals

    @property
    def codec(self) -> Codec:
        """The codec of all parameters that have no other."""
        return self.route.codec

    def adopt(self, codecs: Mapping[int, Codec | None]) -> None:
        """Let these parameters go through these codecs, or raw, from the next step on."""
        self._codecs |= codecs
        others = {c for c in codecs.values() if c is not None} - set(self.routes)
        for other in sorted(others, key=str):
            self.routes[other] = Route.of(other, self.link.size, **self._options)

    @property
    def adaptations(self) -> list[Adaptation]:
        """Those of the codecs that learn."""
        return [r.adaptation for r in self.routes.values() if r.adaptation is not None]

    def counts(self) -> dict[str, float]:
        """What codecs that learn have counted, all together."""
        total: Counter[str] = Counter()
        for adaptation in self.adaptations:
            total.update(adaptation.counts)
        return dict(total)

    def can_code(self, values: Tensor) -> bool:
        """Are there enough values, of a type that codecs take?"""
        return values.numel() >= max(self.min_numel, 1) and values.dtype in FLOAT_DTYPES

    def route_for(self, tensor: int, values: Tensor) -> Route | None:
        """How parameter number `tensor` travels after the warm-up; None: raw."""
        if not self.can_code(values):
            return None
        codec = self._codecs.get(tensor, self.codec)
        if codec is None:
            return None
        route = self.routes[codec]
        if isinstance(codec, Identity) and route.collective.name == "all_reduce":
            return None
        return route

    def skips(self, tensor: int) -> bool:
        """Does parameter number `tensor` travel raw whatever its size?"""
        return self._codecs.get(tensor, self.codec) is None

    def begin_step(self) -> None:
        """Drop what is left of an earlier step that ended in an error."""
        self._small = SmallParts()
        for adaptation in self.adaptations:
            adaptation.begin_step()

    def submit(
        self, executor: Executor, bucket: Tensor, parts: Sequence[Part], *, last: bool
    ) -> Future[Tensor]:
        """Let `executor` replace `bucket`, which `parts` tile, by its mean over the workers.

        `last` ends the step. Small parts may wait for it, to travel with those of other buckets.
        """
        if bucket.is_sparse:
            futures = [executor.submit(partial(reduce_sparse, values=bucket))]
            self._end_bucket(executor, last=last)
            return join(futures, lambda results: results[0])
        taken = self.link.device.take(bucket)
        small, coded = self._sort(_within(taken, parts))
        chunks = [(route, chunk) for route in coded for chunk in self._chunks(coded[route])]
        jobs = [self._job(route, chunk) for route, chunk in chunks]
        if bucket.numel() and (not coded or self.step < self.warmup_steps):
            jobs, chunks, coded, small = [partial(reduce_raw, values=taken.values)], [], {}, []
        futures = [executor.submit(partial(_after, taken, self.prepare, job)) for job in jobs]
        if small:
            self._small.add(small, taken)
            futures.append(self._small.done)
        self._end_bucket(executor, last=last)
        routes = [route for route, _ in chunks]
        return give_back(futures, partial(self._learn, coded, routes), taken, self.link.device)

    def _end_bucket(self, executor: Executor, *, last: bool) -> None:
        """Send the small parts if it is time to."""
        if self._small.numel and (last or self._small.numel >= self.chunk):
            waiting, self._small = self._small, SmallParts()
            executor.submit(waiting.job(), waiting.done)
        self.step += last

    def _sort(self, parts: Sequence[Part]) -> tuple[list[Part], dict[Route, list[Part]]]:
        """Those that travel raw, and the others by route, with codec and residual."""
        small: list[Part] = []
        coded: dict[Route, list[Part]] = {}
        for part in parts:
            route = self.route_for(part.tensor, part.values)
            if route is not None:
                ready = replace(part, codec=route.codec)
                owing = self._owing(ready) if route.error_feedback else ready
                coded.setdefault(route, []).append(owing)
            elif part.values.numel():
                small.append(part)
        return small, coded

    def _owing(self, part: Part) -> Part:
        """`part` with its residual."""
        residual = self.residuals.of(part.key, part.values.numel())
        return replace(part, residual=residual, due=Due(part.values))

    def _chunks(self, parts: Sequence[Part]) -> Iterator[list[Slice]]:
        count = -(-sum(part.values.numel() for part in parts) // self.chunk)
        return filter(None, cut(whole(parts), count))

    def _job(self, route: Route, chunk: Sequence[Slice]) -> Job:
        return partial(_reduce, route, chunk, Key(seed=self.seed, step=self.step))

    def _learn(
        self, coded: Mapping[Route, Sequence[Part]], routes: Sequence[Route], results: Sequence[Any]
    ) -> None:
        """Let codecs learn from what the jobs have seen; `routes` has the route of each job."""
        for route, parts in coded.items():
            if route.adaptation is not None:
                pairs = zip(routes, results, strict=False)
                seen = [each for of, sightings in pairs if of is route for each in sightings]
                route.adaptation.finish(parts, seen)


def _within(taken: Taken, parts: Sequence[Part]) -> Sequence[Part]:
    """`parts`, which tile a tensor that was taken, of the values that jobs work on."""
    if taken.values is taken.tensor:
        return parts
    pieces = torch.split(taken.values, [part.values.numel() for part in parts])
    return [replace(part, values=x) for part, x in zip(parts, pieces, strict=True)]


def _after(taken: Taken, prepare: Callable[[], None], job: Job, link: Link) -> Any:
    """Do `job` when its values are there, and what is owed is up to date."""
    taken.ready()
    prepare()
    return job(link)


def _reduce(route: Route, chunk: Sequence[Slice], key: Key, link: Link) -> list[Sighting]:
    """Replace each slice by its mean; an error says which codec and parameters it is about."""
    try:
        return route.reduce(link, [piece.decided() for piece in chunk], key)
    except LinkError:
        raise
    except Exception as error:
        labels = ", ".join(dict.fromkeys(piece.part.label for piece in chunk))
        raise RuntimeError(
            f"{route.codec} failed on rank {link.rank} with {labels}: "
            f"{type(error).__name__}: {error}"
        ) from error
