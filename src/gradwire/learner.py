"""What the learning codec of a reducer has learned so far, by parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.codec import SummableCodec
from gradwire.learning import Layout, LearningCodec, State
from gradwire.link import Link
from gradwire.parts import Part


class Learner:
    """Keeps a state for each parameter, bitwise equal on every rank."""

    def __init__(self, codec: LearningCodec[Any], *, owing: bool) -> None:
        self.codec = codec
        self.owing = owing
        self.states: dict[int, State] = {}

    def codec_for(self, part: Part) -> SummableCodec | None:
        """What encodes this part in this step; None: it travels raw."""
        return self.codec.codec_for(self._state(part), _layout(part))

    def share_due(self, part: Part) -> float:
        """How much of the residual a raw step is to deliver."""
        return self.codec.share_due(self._state(part))

    def learn(
        self, link: Link, parts: Sequence[Part], remarks: Sequence[tuple[float, ...]]
    ) -> None:
        """Take in the means of a step, then hold the lessons that are due over `link`."""
        for part, remark in zip(parts, remarks, strict=True):
            self.states[part.tensor] = self.codec.learn(
                self._state(part), _layout(part), part.values, remark, owing=self.owing
            )
        due = [part for part in parts if self.codec.is_due(self._state(part))]
        if due:
            for part, lesson in zip(due, self._lessons(link, due), strict=True):
                state = self.codec.adopt(self._state(part), _layout(part), lesson)
                self.states[part.tensor] = state

    def save(self, names: dict[str, int]) -> dict[str, Any]:
        """The states by parameter name, of tensors, numbers and words only."""
        saved = {n: self.states[i].fields() for n, i in names.items() if i in self.states}
        return {"codec": str(self.codec), "states": saved}

    def load(self, saved: dict[str, Any], names: dict[str, int]) -> None:
        """Go on where `save` left off."""
        if saved["codec"] != str(self.codec):
            raise ValueError(
                f"the state was learned by '{saved['codec']}', but the codec attached is "
                f"'{self.codec}'; attach the same one, or start without a state."
            )
        unknown = sorted(set(saved["states"]) - set(names))
        if unknown:
            raise ValueError(f"the state has learned of unknown parameters: {unknown}.")
        make = self.codec.state_type
        self.states = {names[name]: make(**state) for name, state in saved["states"].items()}

    def _state(self, part: Part) -> State:
        return self.states.get(part.tensor) or self.codec.start()

    def _lessons(self, link: Link, due: Sequence[Part]) -> Sequence[Tensor]:
        """Worked out by rank 0 and sent to all: another BLAS would give other bits."""
        sizes = torch.zeros(len(due), dtype=torch.int64)
        joined = torch.empty(0)
        if link.rank == 0:
            with link.account.timed("encode"):
                lessons = [self.codec.lesson(self._state(part), _layout(part)) for part in due]
                sizes = torch.tensor([lesson.numel() for lesson in lessons])
                joined = torch.cat(lessons)
        link.broadcast(sizes)
        joined = joined if link.rank == 0 else torch.empty(int(sizes.sum()))
        if joined.numel():
            link.broadcast(joined)
        return [lesson.clone() for lesson in torch.split(joined, sizes.tolist())]


def _layout(part: Part) -> Layout:
    return part.layout or Layout((part.values.numel(),), (1,))
