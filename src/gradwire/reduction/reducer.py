"""One bucket of gradients to its mean: which parameters are coded, how, and what error stays.

The coded parameters of a bucket are sorted by codec and cut into chunks, which can be reduced one
beside the other. Others travel raw: small ones, those a policy skips, those of a type no codec
takes, such as float64, and all of them in warm-up steps.
Residuals are kept by parameter, never by bucket: DDP rebuilds and reorders its buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire import collectives
from gradwire.codec import FLOAT_DTYPES, Codec
from gradwire.codecs.cast import Identity
from gradwire.collectives.parts import Part, Slice, cut, whole
from gradwire.key import Key
from gradwire.reduction.adaptation import Learner
from gradwire.reduction.failures import Failures
from gradwire.reduction.policy import MIN_NUMEL
from gradwire.reduction.route import Route
from gradwire.reduction.small import reduce_joined, reduce_raw
from gradwire.transport.lanes import Job
from gradwire.transport.link import Link, LinkError

CHUNK = 1 << 20
"""Values that a job sends to another worker: a chunk between two, a share of it among more.

Few, so that while one chunk is on the wire another is encoded; but each costs the latency of some
messages, so not too few. At 1 Gbit/s half as many took 5 % longer among four workers and a quarter
a third longer; four times as many took 14 % longer between two.
"""
_FEW = 256


@dataclass(frozen=True)
class Work:
    """What is to be done for one bucket.

    Jobs are independent of each other and may run at once, each over a link of its own; `small`
    is to be reduced raw, with that of other buckets if one likes. Of each route in turn, `chunks`
    says what the jobs do.
    """

    jobs: Sequence[Job]
    small: Sequence[Part]
    chunks: Mapping[Route, Sequence[Sequence[Slice]]]


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
        collective: str | None = None,
        error_feedback: bool | None = None,
        min_numel: int = MIN_NUMEL,
        codecs: Mapping[int, Codec | None] | None = None,
        warmup_steps: int = 0,
        chunk: int | None = None,
        seed: int = 0,
    ) -> None:
        self.link = link
        self.route = Route.of(
            codec, link.size, collective=collective, error_feedback=error_feedback
        )
        self._codecs = codecs or {}
        others = {c for c in self._codecs.values() if c is not None and c != codec}
        self.routes = {codec: self.route} | {
            other: Route.of(other, link.size, error_feedback=error_feedback)
            for other in sorted(others, key=str)
        }
        self.min_numel = min_numel
        self.warmup_steps = warmup_steps
        self.chunk = CHUNK * (link.size if link.size > 2 else 1) if chunk is None else chunk
        self.seed = seed
        self.step = 0
        self.residuals: dict[int, Tensor] = {}
        self.failures = Failures(speaks=link.rank == 0)

    @property
    def codec(self) -> Codec:
        """The codec of all parameters that have no other."""
        return self.route.codec

    @property
    def learners(self) -> list[Learner]:
        """Those of the codecs that learn."""
        return [r.learner for r in self.routes.values() if r.learner is not None]

    def route_for(self, tensor: int, values: Tensor) -> Route | None:
        """How parameter number `tensor` travels after the warm-up; None: raw."""
        if not values.numel():
            return None
        if values.numel() < self.min_numel or values.dtype not in FLOAT_DTYPES:
            return None
        codec = self._codecs.get(tensor, self.codec)
        if codec is None:
            return None
        route = self.routes[codec]
        if isinstance(codec, Identity) and route.collective == "all_reduce":
            return None
        return route

    def skips(self, tensor: int) -> bool:
        """Does parameter number `tensor` travel raw whatever its size?"""
        return self._codecs.get(tensor, self.codec) is None

    def work(self, bucket: Tensor, parts: Sequence[Part]) -> Work:
        """What replaces `bucket`, which `parts` tile, by its mean over the workers."""
        self.failures.begin(self.step)
        coded: dict[Route, list[Part]] = {}
        small = []
        for part in parts:
            if not part.values.numel():
                continue
            route = self.route_for(part.tensor, part.values)
            if route is None:
                small.append(part)
            else:
                coded.setdefault(route, []).append(part)
        if not bucket.numel():
            return Work([], [], {})
        if not coded or self.step < self.warmup_steps:
            return Work([lambda link: reduce_raw(link, bucket)], [], {})
        chunks = {route: self._chunks(route, coded[route]) for route in coded}
        jobs = [self._job(route, chunk) for route in chunks for chunk in chunks[route]]
        return Work(jobs, small, chunks)

    def finish(self, work: Work, results: Sequence[Any]) -> None:
        """Take in what the jobs have returned."""
        rest = iter(results)
        for route, chunks in work.chunks.items():
            of_route = [next(rest) for _ in chunks]
            if route.is_dependent:
                self.failures.learn(route, chunks, of_route)

    def reduce(self, bucket: Tensor, parts: Sequence[Part]) -> None:
        """Do the work of one bucket here and now."""
        work = self.work(bucket, parts)
        results = [job(self.link) for job in work.jobs]
        if work.small:
            reduce_joined(self.link, [part.values for part in work.small])
        self.finish(work, results)

    def residual(self, tensor: int, values: Tensor) -> Tensor:
        """What this worker owes of parameter number `tensor`, whose gradients are like `values`."""
        if tensor not in self.residuals:
            self.residuals[tensor] = torch.zeros(values.numel())
        return self.residuals[tensor]

    def _chunks(self, route: Route, parts: Sequence[Part]) -> list[list[Slice]]:
        ready = [
            replace(
                part,
                residual=self._owed(part) if route.error_feedback else None,
                alone=self.failures.is_alone(route, part),
            )
            for part in parts
        ]
        count = -(-sum(part.values.numel() for part in parts) // self.chunk)
        grain = None if route.learner else route.codec.grain
        return [chunk for chunk in cut(whole(ready), grain, count) if chunk]

    def _owed(self, part: Part) -> Tensor | None:
        """The residual of `part`, unless its gradient is zero: then zero is sent, and it is kept.

        DDP throws away the mean of a parameter that no worker used, and all that it delivers.
        """
        residual = self.residual(part.tensor, part.values)
        return None if _is_zero(part.values) else residual

    def _job(self, route: Route, chunk: Sequence[Slice]) -> Job:
        key = Key(seed=self.seed, step=self.step)
        reduce: Callable[..., Any]
        if route.learner is not None:
            reduce = partial(route.learner.reduce, parts=[piece.part for piece in chunk], key=key)
        else:
            reduce = partial(
                collectives.COLLECTIVES[route.collective], codec=route.codec, pieces=chunk, key=key
            )
        return partial(_naming_errors, reduce, route, chunk)


def _is_zero(values: Tensor) -> bool:
    """Is every value zero? Mostly the first few say no."""
    return not (bool(values[:_FEW].any()) or bool(values[_FEW:].any()))


def _naming_errors(reduce: Job, route: Route, chunk: Sequence[Slice], link: Link) -> Any:
    """Let an error say which codec and which parameters it is about."""
    try:
        return reduce(link)
    except LinkError:
        raise
    except Exception as error:
        labels = ", ".join(dict.fromkeys(piece.part.label for piece in chunk))
        raise RuntimeError(
            f"{route.codec} failed on rank {link.rank} with {labels}: "
            f"{type(error).__name__}: {error}"
        ) from error
