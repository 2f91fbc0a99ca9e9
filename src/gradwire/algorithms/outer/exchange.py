"""What fragments are exchanged through: a reducer, and lanes of its own to run its jobs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.adapters.checks import check_agreement
from gradwire.algorithms.outer.fragments import Fragment
from gradwire.codec import Codec
from gradwire.collectives.parts import Part
from gradwire.reduction import streams
from gradwire.reduction.parameters import Parameter
from gradwire.reduction.policy import Policy
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.totals import route_of
from gradwire.transport import groups
from gradwire.transport.executor import join
from gradwire.transport.lanes import Lanes
from gradwire.transport.link import Link

LANES = 2  # while one has a chunk on the wire, the other encodes the next


class Exchange:
    """Takes the mean of what workers say of a fragment, over those that have a part in it."""

    def __init__(
        self,
        tensors: Sequence[Parameter],
        codec: Codec,
        *,
        policy: Policy,
        feedback: float | None,
        seed: int,
        group: dist.ProcessGroup,
        settings: dict[str, Any],
    ) -> None:
        streams.check_seed(seed)
        policy.check([each.name for each in tensors])
        link = Link(group)
        facts = {
            "codec": str(codec),
            "policy": str(policy),
            "seed": seed,
            **settings,
            "parameters": [(each.name, tuple(each.value.shape)) for each in tensors],
        }
        offers = check_agreement(facts, link, (uuid.uuid4().hex, streams.open_numbers()))
        coded = {
            each.number: policy.codec_for(each.name, codec) if each.is_trained else None
            for each in tensors
        }
        self.reducer = Reducer(
            link,
            codec,
            error_feedback=None if feedback is None else feedback > 0,
            min_numel=policy.min_numel,
            codecs=coded,
            warmup_steps=policy.warmup_steps,
        )
        own = groups.same_members(group, f"gradwire/{offers[0][0]}", LANES)
        self.lanes = Lanes([Link(each) for each in own], "gradwire-outer")
        self.stream = streams.Stream(seed, streams.free_number([taken for _, taken in offers]))
        self.reducer.seed = self.stream.seed
        self._kept = 1.0 if feedback is None else feedback
        self.tensors = tensors

    @property
    def world(self) -> int:
        """How many workers there are."""
        return self.reducer.link.size

    def begin(
        self,
        fragment: Fragment,
        change: Tensor,
        *,
        here: bool,
        watched: Callable[[Part], Part],
    ) -> Future[Tensor | None]:
        """A future of the mean of `change` over the workers that are `here`; None if nobody is.

        Those that are not send zeros, and what they owe stays as it was.
        """
        parts = [watched(part) for part in fragment.parts(change)]
        if here:
            self._forget(parts)
        else:
            change.zero_()
        self.reducer.begin_step()
        present = self.lanes.submit(partial(_roll_call, here=here))
        mean = self.reducer.submit(self.lanes, change, parts, last=True)
        return join([present, mean], partial(_mean_of_present, world=self.world))

    def close(self) -> None:
        """End the threads and leave the groups."""
        self.lanes.close()
        self.stream.close()

    def owing(self) -> list[Parameter]:
        """Those of which something may be owed."""
        routes = [(each, route_of(self.reducer, each)) for each in self.tensors]
        return [each for each, route in routes if route is not None and route.error_feedback]

    def _forget(self, parts: Sequence[Part]) -> None:
        """Keep only a share of what is owed."""
        if self._kept in (0.0, 1.0):
            return
        owing = {each.number for each in self.owing()}
        for part in parts:
            if part.tensor in owing:
                self.reducer.residuals.of(part.key, part.values.numel()).mul_(self._kept)


def _roll_call(link: Link, *, here: bool) -> int:
    """How many workers have a part in the exchange that follows."""
    return sum(row[0] for row in link.gather_sizes([int(here)]))


def _mean_of_present(results: list[Any], *, world: int) -> Tensor | None:
    """The mean over all workers counts zeros of those who are not here; over those who are."""
    present, mean = results
    if present < world and present:
        mean.mul_(world).div_(present)
    return mean if present else None
