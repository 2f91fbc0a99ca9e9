"""The state of an attachment, for checkpoints: one format for DDP and FSDP2.

It is made for `torch.save` and for `torch.distributed.checkpoint` (DCP). DCP writes one of the
values that ranks have under the same key, so only what is equal on all ranks has a common key::

    world, step, modules, stream, scale, learned     equal on every rank
    rank1: residuals                                 of rank 1, by name

`modules` has the steps of FSDP modules, which may differ. DCP also loads only those keys, and
tensors of those shapes, that a fresh attachment has. So residuals are there from the start, as
zeros; and what codecs have learned, which has no fixed shape, is one run of bytes.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gradwire.reduction.residuals import Residuals

_SHARED = ("world", "step", "modules", "stream", "scale", "learned")


@dataclass
class Progress:
    """Where an attachment stands, but for what is owed and learned."""

    step: int = 0
    stream: int = 0
    scale: float = 1.0
    modules: dict[str, int] = field(default_factory=dict)


class Learner(Protocol):
    """Somebody who learns about parameters: an `Adaptation`, or what plans for `auto`."""

    states: Any

    @property
    def codec(self) -> object:
        """What it is spelled by."""

    def save(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        """What it knows, of tensors, numbers and words only; `numbers` are those of parameters."""

    def loaded(
        self, saved: Mapping[str, Any], numbers: Mapping[str, int], *, same_world: bool
    ) -> Any:
        """What `save` has saved, to be put into `states`."""


@dataclass(frozen=True)
class Checkpoint:
    """What is to be saved of one worker, and where it comes from.

    `owing` has the sizes of its residuals, `known` those of everything that may have one by now or
    had one before. `learners` know of parameters by `numbers`.
    """

    rank: int
    world: int
    residuals: Residuals
    owing: Mapping[str, int]
    known: Mapping[str, int]
    learners: Sequence[Learner] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)

    def save(self, progress: Progress) -> dict[str, Any]:
        """This rank's state."""
        learned = {str(each.codec): each.save(self.numbers) for each in self.learners}
        return {
            "world": self.world,
            "step": progress.step,
            "modules": dict(progress.modules),
            "stream": progress.stream,
            "scale": progress.scale,
            "learned": pack(learned),
            f"rank{self.rank}": {"residuals": self.residuals.save(self.owing)},
        }

    def load(self, state: Mapping[str, Any], modules: Sequence[str] = ()) -> Progress:
        """Owe and know what `save` has saved. Everything is looked at before anything is changed.

        `modules` are those of this attachment.
        """
        _check_shared(state, modules)
        owed = self._owed(state)
        learned = self._learned(unpack(state["learned"]), same_world=state["world"] == self.world)
        if self.rank == 0:
            self._warn(state, owed)
        for learner, states in zip(self.learners, learned, strict=True):
            learner.states = states
        self.residuals.load({name: owed[name] for name in owed if name in self.owing})
        return Progress(
            state["step"], state["stream"], float(state["scale"]), dict(state["modules"])
        )

    def _owed(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """The residuals of this rank; none if there were more or fewer workers."""
        if state["world"] != self.world:
            return {}
        own = f"rank{self.rank}"
        if own not in state:
            ranks = ", ".join(key for key in state if key.startswith("rank"))
            raise ValueError(
                f"the state is of {ranks} of {state['world']}, but this worker is {own}; every "
                "rank must save and load a state of its own."
            )
        owed: dict[str, Tensor] = state[own]["residuals"]
        unknown = sorted(set(owed) - set(self.known))
        if unknown:
            raise ValueError(f"the state is of unknown parameters: {unknown}.")
        for name, residual in owed.items():
            _check_residual(name, self.known[name], residual)
        return owed

    def _learned(self, learned: dict[str, Any], *, same_world: bool) -> list[Any]:
        """The states for each of the learners."""
        specs = [str(each.codec) for each in self.learners]
        if set(learned) != set(specs):
            theirs, ours = (", ".join(sorted(each)) or "no codec" for each in (learned, specs))
            raise ValueError(
                f"the state was learned by {theirs}, but of the codecs attached {ours} learns; "
                "attach the same codecs, or start without a state."
            )
        return [
            learner.loaded(learned[spec], self.numbers, same_world=same_world)
            for spec, learner in zip(specs, self.learners, strict=True)
        ]

    def _warn(self, state: Mapping[str, Any], owed: Mapping[str, Tensor]) -> None:
        """Say what of the state is of no use here, and what it lacks."""
        dropped = [name for name, r in owed.items() if name not in self.owing and r.any()]
        lacking = [name for name in self.owing if name not in owed] if owed else []
        if state["world"] != self.world:
            warnings.warn(
                f"the state is of {state['world']} workers and there are {self.world} now: the "
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
        if lacking:
            warnings.warn(
                f"the state has no residuals of {', '.join(map(repr, lacking))}: nothing is owed "
                "of them at first.",
                stacklevel=4,
            )


def _check_shared(state: Mapping[str, Any], modules: Sequence[str]) -> None:
    missing = [key for key in _SHARED if key not in state]
    if missing:
        raise ValueError(
            f"this is no state of a gradwire handle: it has no {missing[0]!r}; pass what "
            "`handle.state_dict()` gave."
        )
    for key, bits in (("step", 32), ("stream", 32)):
        if not isinstance(state[key], int) or not 0 <= state[key] < 1 << bits:
            raise ValueError(f"{key!r} of the state must be in [0, 2**{bits}), got {state[key]!r}.")
    if not 0 < state["scale"] < math.inf:
        raise ValueError(f"'scale' of the state must be positive, got {state['scale']!r}.")
    if odd := sorted(set(state["modules"]) ^ set(modules)):
        raise ValueError(f"the state and the module differ in what they have: {odd}.")


def _check_residual(name: str, numel: int, residual: Any) -> None:
    expected = (torch.float32, (numel,))
    found: Any = residual
    if isinstance(residual, Tensor):
        found = (residual.dtype, tuple(residual.shape))
    if found != expected:
        raise ValueError(
            f"the state is of another model: the residual of {name!r} must be float32 of shape "
            f"{expected[1]}, got {found!r}."
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
