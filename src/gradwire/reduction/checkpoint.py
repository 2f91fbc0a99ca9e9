"""The state of an attachment, for checkpoints.

It is made for `torch.save` and for `torch.distributed.checkpoint` (DCP). DCP writes one of the
values that ranks have under the same key, so only what is equal on all ranks has a common key::

    world, step, stream, scale, learned     equal on every rank
    rank1: residuals, failure_rates         of rank 1, by parameter name

DCP also loads only those keys, and tensors of those shapes, that a fresh attachment has. So
residuals are there from the start, as zeros; and what codecs have learned, which has no fixed
shape, is one run of bytes.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.reduction.parameters import Parameter
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.route import Route


def save(
    reducer: Reducer, parameters: Sequence[Parameter], *, scale: float, stream: int
) -> dict[str, Any]:
    """This rank's state; `scale` is the loss scale that residuals are in."""
    numbers = {p.name: p.number for p in parameters}
    nested = [p for p in parameters if (route := _route(reducer, p)) and route.is_dependent]
    learned = {
        str(route.codec): route.learner.save(numbers)
        for route in reducer.routes.values()
        if route.learner is not None
    }
    return {
        "world": reducer.link.size,
        "step": reducer.step,
        "stream": stream,
        "scale": scale,
        "learned": pack(learned),
        f"rank{reducer.link.rank}": {
            "residuals": {
                p.name: reducer.residual(p.number, p.value).clone()
                for p in _owing(reducer, parameters)
            },
            "failure_rates": {p.name: reducer.failures.rates.get(p.number) for p in nested},
        },
    }


def load(reducer: Reducer, parameters: Sequence[Parameter], state: dict[str, Any]) -> None:
    """Go on where `save` left off; who has the scale and the stream takes them up likewise.

    Everything is looked at before anything is changed.
    """
    _check_shared(state)
    local = _local(reducer, state)
    known = {p.name: p for p in parameters}
    unknown = sorted({*local["residuals"], *local["failure_rates"]} - set(known))
    if unknown:
        raise ValueError(f"the state is of unknown parameters: {unknown}.")
    for name, residual in local["residuals"].items():
        _check_residual(known[name], residual)
    owing = {p.name for p in _owing(reducer, parameters)}
    if reducer.link.rank == 0:
        _warn(
            reducer, state, [n for n, r in local["residuals"].items() if n not in owing and r.any()]
        )
    numbers = {p.name: p.number for p in parameters}
    _load_learned(reducer, numbers, unpack(state["learned"]))
    reducer.step = state["step"]
    reducer.residuals = {
        numbers[n]: local["residuals"][n].clone() for n in local["residuals"] if n in owing
    }
    rates = {numbers[n]: rate for n, rate in local["failure_rates"].items() if rate is not None}
    reducer.failures.rates = rates


def _check_shared(state: dict[str, Any]) -> None:
    missing = [key for key in ("world", "step", "stream", "scale", "learned") if key not in state]
    if missing:
        raise ValueError(
            f"this is no state of a handle of DDP: it has no {missing[0]!r}; pass what "
            "`handle.state_dict()` gave."
        )
    for key, bits in (("step", 32), ("stream", 32)):
        if not isinstance(state[key], int) or not 0 <= state[key] < 1 << bits:
            raise ValueError(f"{key!r} of the state must be in [0, 2**{bits}), got {state[key]!r}.")
    if not 0 < state["scale"] < math.inf:
        raise ValueError(f"'scale' of the state must be positive, got {state['scale']!r}.")


def _local(reducer: Reducer, state: dict[str, Any]) -> dict[str, Any]:
    """What belongs to this rank; nothing if there were more or fewer workers."""
    own = f"rank{reducer.link.rank}"
    if state["world"] != reducer.link.size:
        return {"residuals": {}, "failure_rates": {}}
    if own not in state:
        ranks = ", ".join(key for key in state if key.startswith("rank"))
        raise ValueError(
            f"the state is of {ranks} of {state['world']}, but this worker is {own}; every rank "
            "must save and load a state of its own."
        )
    local: dict[str, Any] = state[own]
    return local


def _check_residual(parameter: Parameter, residual: Any) -> None:
    expected = (parameter.value.numel(),)
    if not isinstance(residual, Tensor) or (residual.dtype, residual.shape) != (
        torch.float32,
        expected,
    ):
        found = (
            (residual.dtype, tuple(residual.shape)) if isinstance(residual, Tensor) else residual
        )
        raise ValueError(
            f"the state is of another model: the residual of {parameter.name!r} must be float32 of "
            f"shape {expected}, got {found!r}."
        )


def _warn(reducer: Reducer, state: dict[str, Any], dropped: list[str]) -> None:
    """Say what of the state is of no use here."""
    if state["world"] != reducer.link.size:
        warnings.warn(
            f"the state is of {state['world']} workers and there are {reducer.link.size} now: the "
            "step and what was learned are kept, residuals and failure rates start anew.",
            stacklevel=4,
        )
    if dropped:
        warnings.warn(
            f"the state has residuals of {', '.join(map(repr, dropped))}, which have no error "
            "feedback here: what is owed of them is dropped. To deliver it, attach with "
            "`error_feedback=True` and the policy of before.",
            stacklevel=4,
        )


def pack(learned: dict[str, Any]) -> bytes:
    """Tensors, numbers and words as bytes."""
    file = io.BytesIO()
    torch.save(learned, file)
    return file.getvalue()


def unpack(data: bytes) -> dict[str, Any]:
    """What was packed."""
    learned: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return learned


def _route(reducer: Reducer, parameter: Parameter) -> Route | None:
    if not parameter.is_trained or parameter.is_sparse:
        return None
    return reducer.route_for(parameter.number, parameter.value)


def _owing(reducer: Reducer, parameters: Sequence[Parameter]) -> list[Parameter]:
    """Those with error feedback."""
    return [p for p in parameters if (route := _route(reducer, p)) and route.error_feedback]


def _load_learned(reducer: Reducer, numbers: dict[str, int], learned: dict[str, Any]) -> None:
    learners = {str(r.codec): r.learner for r in reducer.routes.values() if r.learner is not None}
    if set(learned) != set(learners):
        theirs, ours = (", ".join(sorted(specs)) or "no codec" for specs in (learned, learners))
        raise ValueError(
            f"the state was learned by {theirs}, but of the codecs attached {ours} learns; attach "
            "the same codecs, or start without a state."
        )
    before = [(learner, learner.states) for learner in learners.values()]
    try:
        for spec, learner in learners.items():
            learner.load(learned[spec], numbers)
    except Exception:
        for learner, states in before:
            learner.states = states
        raise
