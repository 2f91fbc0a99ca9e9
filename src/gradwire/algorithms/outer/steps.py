"""Outer steps: `OuterSteps`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch.distributed as dist
from torch import nn

from gradwire.algorithms.outer.exchange import Exchange
from gradwire.algorithms.outer.flight import Flight
from gradwire.algorithms.outer.fragments import Fragment, split
from gradwire.algorithms.outer.handle import OuterHandle
from gradwire.algorithms.outer.model import tensors_of
from gradwire.algorithms.outer.settings import OuterSettings
from gradwire.algorithms.outer.state import Course
from gradwire.codec import Codec
from gradwire.codecs import as_codec
from gradwire.collectives.parts import Part
from gradwire.kernels.exact import is_finite
from gradwire.reduction.policy import Policy, policy_of

_logger = logging.getLogger(__name__)


class OuterSteps(OuterHandle):
    """Lets workers train apart, and exchanges how far their weights have moved.

    Call `step` after each step of the optimizer, on every rank. Every so many of them the change of
    the weights, the outer gradient, is averaged over the workers through `codec`, and an outer step
    is made with the mean. The optimizer, with all its moments, stays each worker's own.

    model: a module, not under DDP, which would exchange gradients too. Make it, load its weights,
        then make this: all workers take the weights of rank 0.
    codec: such as `gw.QSGD(bits=4)`, or its spec, "qsgd:bits=4".
    every, lr, momentum, feedback, fragments, overlap: `OuterSettings` says what they do.
    policy: which parameters travel otherwise; `min_numel` is short for `Policy(min_numel=...)`.
    seed: of the random streams of the codec.
    group: the workers; by default all.
    """

    def __init__(
        self,
        model: nn.Module,
        codec: Codec | str,
        *,
        every: int = 30,
        lr: float = 0.7,
        momentum: float = 0.9,
        feedback: float | None = None,
        fragments: int = 1,
        overlap: int = 0,
        policy: Policy | None = None,
        min_numel: int | None = None,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.settings = OuterSettings(every, lr, momentum, feedback, fragments, overlap)
        tensors = tensors_of(model, fragments)
        group = group or dist.group.WORLD
        assert group is not None
        exchange = Exchange(
            tensors,
            as_codec(codec),
            policy=policy_of(policy, min_numel),
            feedback=feedback,
            seed=seed,
            group=group,
            settings=asdict(self.settings),
        )
        super().__init__(exchange, Course(split(tensors, fragments), []))
        for fragment in self._course.fragments:
            self._reducer.link.broadcast(fragment.weights)
            fragment.put(fragment.weights)

    def step(self, *, participate: bool = True) -> None:
        """Call it after each step of the optimizer, on every rank alike.

        participate: False if this worker has nothing to say in an exchange that begins now, because
            it has lost its round or run out of data. It is left out of the mean, which is that of
            the others, and takes the agreed weights.
        """
        course = self._course
        course.step += 1
        self._steps += 1
        due = [course.fragments[index] for index in self.settings.due(course.step)]
        self._run(due, self.settings.overlap, participate=participate)

    def finish(self, *, participate: bool = True) -> None:
        """Exchange now what has not been exchanged: all workers have the same weights then.

        Call it on every rank, at the end of training, or before the model is saved for use.
        """
        course = self._course
        self._land(course.step + self.settings.overlap)
        left = [each for each in course.fragments if each.exchanged < course.step]
        self._run(left, 0, participate=participate)
        for fragment in course.fragments:
            fragment.put(fragment.weights)

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """In here the model has the weights that all workers agreed on in the last outer steps."""
        fragments = self._course.fragments
        own = [fragment.current() for fragment in fragments]
        for fragment in fragments:
            fragment.put(fragment.weights)
        try:
            yield
        finally:
            for fragment, values in zip(fragments, own, strict=True):
                fragment.put(values)

    def _run(self, fragments: list[Fragment], overlap: int, *, participate: bool) -> None:
        """Let fragments take off, and land those that are due."""
        try:
            for fragment in fragments:
                self._take_off(fragment, overlap, participate=participate)
            self._land(self._course.step)
        except Exception as error:
            self._exchange.lanes.fail(error)  # or the others would wait for this worker
            raise

    def _take_off(self, fragment: Fragment, overlap: int, *, participate: bool) -> None:
        change = fragment.change()
        here = participate and is_finite(change)
        if participate and not here:
            _logger.warning(
                "rank %d is left out of an outer step because its weights are not finite; it goes "
                "on with those of the others, but with its own optimizer.",
                self.rank,
            )
        self._counts["left_out"] += not here
        before = fragment.current() if here and overlap else None
        self._log_exchange(change.numel())
        mean = self._exchange.begin(fragment, change, here=here, watched=self._watched)
        fragment.exchanged = self._course.step
        self._course.flights.append(Flight(fragment, self._course.step + overlap, before, mean))

    def _land(self, step: int) -> None:
        """Land everything that is due by `step`, in the order in which it took off."""
        flights = self._course.flights
        for flight in [each for each in flights if each.lands <= step]:
            flight.land(self.settings)
            flights.remove(flight)
            self._counts["outer_steps"] += 1

    def _log_exchange(self, numel: int) -> None:
        """A step of the log is an exchange; what is on its way must have come before the next."""
        if self._log is None:
            return
        for flight in self._course.flights:
            flight.mean.wait()
        world = self._exchange.world
        self._log.begins(self._reducer.step + 1)
        self._log.sends(numel, 2 * (world - 1) / world)

    def _watched(self, part: Part) -> Part:
        return part if self._log is None else self._log.watched(part.key, part)
