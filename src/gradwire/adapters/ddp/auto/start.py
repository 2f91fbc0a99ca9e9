"""What `attach` asks of `auto`, and gives it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gradwire.adapters.ddp.auto.flight import Flight
from gradwire.adapters.ddp.auto.pilot import Pilot
from gradwire.planner.auto.settings import Auto
from gradwire.reduction.parameters import Parameter
from gradwire.reduction.policy import Policy
from gradwire.reduction.reducer import Reducer
from gradwire.transport.link import Link


def check_options(collective: str | None, error_feedback: bool | None) -> None:
    """Refuse what a plan could not keep to."""
    if collective is not None:
        raise ValueError(
            f"`auto` chooses the collective with the codec, got `collective={collective!r}`; "
            "leave it out."
        )
    if error_feedback:
        raise ValueError(
            "`auto` chooses among unbiased codecs, which need no error feedback, and a change of "
            "plan would leave residuals behind; leave `error_feedback` out."
        )


def start(
    auto: Auto,
    parameters: Sequence[Parameter],
    policy: Policy,
    reducer: Reducer,
    links: Sequence[Link],
    neighbours: int,
) -> Pilot:
    """Plan for the parameters that the policy leaves open, as they travel through `reducer`.

    `neighbours` workers share the cores of this machine.
    """
    sizes = {
        p.number: p.value.numel()
        for p in parameters
        if p.is_trained
        and not p.is_sparse
        and reducer.can_code(p.value)
        and policy.codec_for(p.name, reducer.codec) is reducer.codec
    }
    cores = len(os.sched_getaffinity(0)) / neighbours
    return Pilot(Flight(auto, reducer, links, sizes, cores))
