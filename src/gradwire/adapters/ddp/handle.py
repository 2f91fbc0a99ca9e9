"""What `attach` returns for DDP: a handle with the hook that DDP calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.futures import Future

from gradwire.adapters.ddp.auto.pilot import Pilot
from gradwire.adapters.handle import Handle
from gradwire.codec import Codec
from gradwire.collectives.parts import Part
from gradwire.planner.auto.settings import Auto
from gradwire.reduction.checkpoint import Checkpoint, Progress
from gradwire.reduction.loss_scale import loss_scale
from gradwire.reduction.parameters import Parameter
from gradwire.reduction.plan import Plan, plan
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.stats import Stats
from gradwire.reduction.streams import Stream
from gradwire.reduction.totals import route_of, totals
from gradwire.transport.lanes import Lanes


class DDPHandle(Handle):
    """The handle of a `DistributedDataParallel` module."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        reducer: Reducer,
        lanes: Lanes,
        stream: Stream,
        *,
        num_reduced: int,
        scaler: GradScaler | None = None,
        pilot: Pilot | None = None,
    ) -> None:
        residuals = reducer.residuals
        super().__init__(residuals, loss_scale(scaler, residuals, reducer.adaptations))
        self._parameters = parameters
        self._by_id = {id(p.value): p for p in parameters}
        self._numbers = {p.name: p.number for p in parameters}
        self._reducer = reducer
        self._lanes = lanes
        self._stream = stream
        self._reducer.seed = stream.seed
        self._num_reduced = num_reduced
        self._pilot = pilot
        self._seen: set[int] = set()  # the parameters of the buckets of this step so far
        self._steps = 0

    @property
    def codec(self) -> Codec | Auto:
        return self._reducer.codec if self._pilot is None else self._pilot.codec

    def plan(self) -> Plan:
        pilot = self._pilot
        note, is_settled = ("", True) if pilot is None else (pilot.note, pilot.is_settled)
        found = plan(self._reducer, [p for p in self._parameters if p.is_trained])
        return replace(found, note=note, is_settled=is_settled)

    def stats(self) -> Stats:
        return totals(self._reducer, self._lanes.links, self._parameters, self._steps)

    def close(self) -> None:
        """End the threads and their process groups, on every rank; `stats` and state stay.

        The module cannot take another hook; wrap the model anew for that.
        """
        self._lanes.close()
        self._stream.close()
        if self._log is not None:
            self._log.ended()

    def hook(self) -> Callable[..., Future[Tensor]]:
        """The communication hook for `register_comm_hook`."""

        # DDP looks at the name `bucket`, and at annotations, which must not be strings.
        def gradwire_hook(state, bucket):  # type: ignore[no-untyped-def]
            try:
                return self._reduce(bucket.buffer(), bucket.parameters())
            except Exception as error:
                self._lanes.fail(error)  # or the others would wait for this worker
                raise

        return gradwire_hook

    def _checkpoint(self) -> Checkpoint:
        routes = [(p, route_of(self._reducer, p)) for p in self._parameters]
        owing = [p for p, route in routes if route is not None and route.error_feedback]
        return Checkpoint(
            self._reducer.link.rank,
            self._reducer.link.size,
            self._residuals,
            owing={p.name: p.value.numel() for p in owing},
            known={p.name: p.value.numel() for p in self._parameters},
            learners=[*self._reducer.adaptations, *([self._pilot] if self._pilot else [])],
            numbers=self._numbers,
        )

    def _progress(self) -> Progress:
        return Progress(self._reducer.step, self._stream.number, self._scale.value)

    def _resume(self, progress: Progress) -> None:
        self._reducer.step = progress.step
        self._stream.become(progress.stream)
        self._reducer.seed = self._stream.seed

    def _reduce(self, buffer: Tensor, parameters: list[Tensor]) -> Future[Tensor]:
        last = self._is_last(parameters)
        parts = [] if buffer.is_sparse else self._parts(buffer, parameters)
        self._steps += last
        if self._pilot is not None:
            self._pilot.see(parts)
        means = self._reducer.submit(self._lanes, buffer, parts, last=last)
        return self._pilot.end(means, self._lanes) if self._pilot and last else means

    def _is_last(self, parameters: list[Tensor]) -> bool:
        """Begin a step if this is the first of its buckets; is it the last?

        DDP says so too, but with `static_graph` it calls every bucket of the first step the first
        and none the last. A parameter that comes again is of a new step: the old one was given up.
        """
        found = {id(parameter) for parameter in parameters}
        if not found.isdisjoint(self._seen):
            self._seen = set()
        if not self._seen:
            self._begin()
        self._seen |= found
        if len(self._seen) < self._num_reduced:
            return False
        self._seen = set()
        return True

    def _begin(self) -> None:
        if self._log is not None:
            self._log.begins(self._reducer.step + 1)
        if self._pilot is not None:
            self._pilot.begin()
        self._reducer.begin_step()
        self._reducer.prepare = self._scale.follow()

    def _parts(self, buffer: Tensor, parameters: list[Tensor]) -> list[Part]:
        pieces = torch.split(buffer, [p.numel() for p in parameters])
        known = [self._by_id[id(p)] for p in parameters]
        parts = [
            Part(values, p.number, layout=p.layout, name=p.name)
            for values, p in zip(pieces, known, strict=True)
        ]
        if self._log is None:
            return parts
        world = self._reducer.link.size
        self._log.sends(buffer.numel(), 2 * (world - 1) / world)
        return [self._log.watched(part.key, part) for part in parts]
