"""What `attach` returns: a `Handle`, which has the hook, the plan, statistics and state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.futures import Future

from gradwire.adapters.tensorboard import Log, Writer
from gradwire.adaptive import Layout
from gradwire.codec import Codec
from gradwire.collectives.parts import Part
from gradwire.reduction import checkpoint
from gradwire.reduction.loss_scale import LossScale
from gradwire.reduction.parameters import Parameter
from gradwire.reduction.plan import Plan, plan
from gradwire.reduction.reducer import Reducer, Work
from gradwire.reduction.small import SmallParts, reduce_sparse
from gradwire.reduction.stats import Stats
from gradwire.reduction.streams import Stream
from gradwire.transport.lanes import Lanes, join
from gradwire.transport.link import Account, Link


class Handle:
    """What `attach` returns: the plan, statistics, state for checkpoints, and the end of it all."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        reducer: Reducer,
        links: Sequence[Link],
        stream: Stream,
        *,
        num_reduced: int,
        scaler: GradScaler | None = None,
    ) -> None:
        self._parameters = parameters
        self._by_id = {id(p.value): p for p in parameters}
        self._reducer = reducer
        self._scale = LossScale(scaler, [reducer], reducer.learners)
        self._lanes = Lanes(links)
        self._small = SmallParts()
        self._log: Log | None = None
        self._stream = stream
        self._follow_stream()
        self._num_reduced = num_reduced
        self._seen: set[int] = set()  # the parameters of the buckets of this step so far
        self._steps = 0

    @property
    def codec(self) -> Codec:
        """The codec that was attached."""
        return self._reducer.codec

    def plan(self) -> Plan:
        """What becomes of each parameter; print it."""
        return plan(self._reducer, [p for p in self._parameters if p.is_trained])

    def stats(self) -> Stats:
        """Totals since `attach`; nothing of them is in the state."""
        links, reducer = self._lanes.links, self._reducer
        account = sum((link.account for link in links), Account())
        routes = {
            p.name: None if p.is_sparse else reducer.route_for(p.number, p.value)
            for p in self._parameters
            if p.is_trained
        }
        numbers = {p.name: p.number for p in self._parameters}
        return Stats(
            steps=self._steps,
            bytes_sent=account.bytes_sent,
            bits_per_value=8 * account.message_bytes / max(account.values, 1),
            encode_s=account.encode_s,
            comm_s=account.comm_s,
            decode_s=account.decode_s,
            raw=tuple(name for name, route in routes.items() if route is None),
            learned={
                name: route.learner.describe(numbers[name])
                for name, route in routes.items()
                if route is not None and route.learner is not None
            },
            expected_failures=reducer.failures.expected,
            fallbacks=reducer.failures.fallbacks,
            buffer_bytes=sum(link.buffer_nbytes for link in links),
            residual_bytes=sum(r.nbytes for r in reducer.residuals.values()) + self._scale.nbytes,
        )

    def log_to(
        self, writer: Writer, *, every: int = 10, nmse: bool = False, layers: bool = False
    ) -> None:
        """Write bytes, their ratio to float32, and times to `writer`, every so many steps.

        nmse: also what this worker's messages lose of its gradient, over the energy of that; costs
            one more decoding in these steps.
        layers: that for each parameter too. One rank is enough: nothing is exchanged for it.
        """
        self._log = Log(writer, self.stats, self._reducer, every=every, nmse=nmse, layers=layers)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: every rank must save its own. It suits `dcp.save`."""
        self._scale.follow()  # the last step may have been skipped
        return checkpoint.save(
            self._reducer, self._parameters, scale=self._scale.value, stream=self._stream.number
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, on the same rank of as many workers.

        If there were more or fewer workers, residuals and failure rates start anew. A state that
        does not fit is refused, and nothing has changed then.
        """
        checkpoint.load(self._reducer, self._parameters, state_dict)
        self._scale.start_from(float(state_dict["scale"]))
        self._stream.become(state_dict["stream"])
        self._follow_stream()

    def close(self) -> None:
        """End the threads and their process groups, on every rank; `stats` and state stay.

        The module cannot take another hook; wrap the model anew for that.
        """
        self._lanes.close()
        self._stream.close()
        if self._log is not None:
            self._log.step_ended()

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

    def _follow_stream(self) -> None:
        self._reducer.seed = self._stream.seed

    def _begin(self) -> None:
        if self._log is not None:
            self._log.step_begins()
        self._small = SmallParts()  # an earlier step may have ended in an error
        self._scale.follow()

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

    def _reduce(self, buffer: Tensor, parameters: list[Tensor]) -> Future[Tensor]:
        last = self._is_last(parameters)
        if buffer.is_sparse:
            work = Work([partial(reduce_sparse, values=buffer)], [], {})
        else:
            parts = self._parts(buffer, parameters)
            if self._log is not None:
                parts = self._log.bucket(parts)
            work = self._reducer.work(buffer, parts)
        futures = self._submit(work, last)
        self._reducer.step += last
        self._steps += last
        return join(futures, lambda results: self._finish(buffer, work, results))

    def _parts(self, buffer: Tensor, parameters: list[Tensor]) -> list[Part]:
        pieces = torch.split(buffer, [p.numel() for p in parameters])
        known = [self._by_id[id(p)] for p in parameters]
        return [
            Part(values, p.number, layout=Layout.of(p.value), name=p.name)
            for values, p in zip(pieces, known, strict=True)
        ]

    def _submit(self, work: Work, last: bool) -> list[Future[Any]]:
        """The futures of the jobs, in order, and of the small parameters if there are any."""
        futures = [self._lanes.submit(job) for job in work.jobs]
        if work.small:
            self._small.add(work.small)
            futures.append(self._small.done)
        if self._small.numel and (last or self._small.numel >= self._reducer.chunk):
            self._lanes.submit(self._small.job(), self._small.done)
            self._small = SmallParts()
        return futures

    def _finish(self, buffer: Tensor, work: Work, results: list[Any]) -> Tensor:
        self._reducer.finish(work, results[: len(work.jobs)])
        return results[0] if buffer.is_sparse else buffer
