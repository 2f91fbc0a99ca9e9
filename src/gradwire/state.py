"""The state of an attachment, for checkpoints.

It is made for `torch.save` and for `torch.distributed.checkpoint` (DCP). DCP writes one of the
values that ranks have under the same key, so only what is equal on all ranks has a common key::

    world, step, scale, learned             equal on every rank
    rank1: residuals, failure_rates         of rank 1, by parameter name

DCP also loads only those keys, and tensors of those shapes, that a fresh attachment has. So
residuals are there from the start, as zeros; and what codecs have learned, which has no fixed
shape, is one run of bytes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from gradwire.parameters import Parameter
from gradwire.reducer import Reducer


def save(reducer: Reducer, parameters: Sequence[Parameter], scale: float) -> dict[str, Any]:
    """This rank's state; `scale` is the loss scale that residuals are in."""
    numbers = {p.name: p.number for p in parameters}
    routes = {p: reducer.route_for(p.number, p.value) for p in parameters if _is_coded(p)}
    owing = [p for p, route in routes.items() if route is not None and route.error_feedback]
    nested = [p for p, route in routes.items() if route is not None and route.is_dependent]
    learned = {
        str(route.codec): route.learner.save(numbers)
        for route in reducer.routes.values()
        if route.learner is not None
    }
    return {
        "world": reducer.link.size,
        "step": reducer.step,
        "scale": scale,
        "learned": pack(learned),
        f"rank{reducer.link.rank}": {
            "residuals": {p.name: reducer.residual(p.number, p.value).clone() for p in owing},
            "failure_rates": {p.name: reducer.failures.rates.get(p.number) for p in nested},
        },
    }


def load(reducer: Reducer, parameters: Sequence[Parameter], state: dict[str, Any]) -> float:
    """Go on where `save` left off; the loss scale that residuals are in now."""
    numbers = {p.name: p.number for p in parameters}
    own, is_same = f"rank{reducer.link.rank}", state["world"] == reducer.link.size
    if is_same and own not in state:
        ranks = ", ".join(key for key in state if key.startswith("rank"))
        raise ValueError(
            f"the state is of {ranks} of {state['world']}, but this worker is {own}; every rank "
            "must save and load a state of its own."
        )
    local = state[own] if is_same else {"residuals": {}, "failure_rates": {}}
    unknown = sorted({*local["residuals"], *local["failure_rates"]} - set(numbers))
    if unknown:
        raise ValueError(f"the state is of unknown parameters: {unknown}.")
    _load_learned(reducer, numbers, unpack(state["learned"]))
    if not is_same and reducer.link.rank == 0:
        warnings.warn(
            f"the state is of {state['world']} workers and there are {reducer.link.size} now: the "
            "step and what was learned are kept, residuals and failure rates start anew.",
            stacklevel=3,
        )
    reducer.step = state["step"]
    reducer.residuals = {numbers[n]: r.clone() for n, r in local["residuals"].items()}
    rates = {numbers[n]: rate for n, rate in local["failure_rates"].items() if rate is not None}
    reducer.failures.rates = rates
    return float(state["scale"])


def pack(learned: dict[str, Any]) -> bytes:
    """Tensors, numbers and words as bytes."""
    file = io.BytesIO()
    torch.save(learned, file)
    return file.getvalue()


def unpack(data: bytes) -> dict[str, Any]:
    """What was packed."""
    learned: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return learned


def _is_coded(parameter: Parameter) -> bool:
    return parameter.is_trained and not parameter.is_sparse


def _load_learned(reducer: Reducer, numbers: dict[str, int], learned: dict[str, Any]) -> None:
    learners = {str(r.codec): r.learner for r in reducer.routes.values() if r.learner is not None}
    if set(learned) != set(learners):
        theirs, ours = (", ".join(sorted(specs)) or "no codec" for specs in (learned, learners))
        raise ValueError(
            f"the state was learned by {theirs}, but of the codecs attached {ours} learns; attach "
            "the same codecs, or start without a state."
        )
    for spec, learner in learners.items():
        learner.load(learned[spec], numbers)
