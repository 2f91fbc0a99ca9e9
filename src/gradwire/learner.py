"""What the learning codec of a reducer has learned so far, by parameter.

It sends some steps raw, and says how much of a residual these are to deliver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import collectives
from gradwire.codec import Key, SummableCodec, is_finite
from gradwire.learning import Layout, LearningCodec, State
from gradwire.link import Link
from gradwire.parts import Part, whole
from gradwire.raw import reduce_joined


class Learner:
    """Keeps a state for each parameter, bitwise equal on every rank."""

    def __init__(self, codec: LearningCodec[Any], *, owing: bool) -> None:
        self.codec = codec
        self.owing = owing
        self.states: dict[int, State] = {}

    def reduce(self, link: Link, parts: Sequence[Part], key: Key) -> None:
        """Each part by what its state says: one message of terms, one of raw values."""
        codecs = [self.codec_for(part) for part in parts]
        self._reduce_raw(
            link, [part for part, codec in zip(parts, codecs, strict=True) if codec is None]
        )
        terms = [(part, codec) for part, codec in zip(parts, codecs, strict=True) if codec]
        remarks = self._sum_terms(link, terms, key) if terms else {}
        self._learn(link, parts, [remarks.get(part.tensor, ()) for part in parts])

    def codec_for(self, part: Part) -> SummableCodec | None:
        """What encodes this part in this step; None: it travels raw."""
        return self.codec.codec_for(self._state(part), _layout(part))

    def _sum_terms(
        self, link: Link, terms: Sequence[tuple[Part, SummableCodec]], key: Key
    ) -> dict[int, tuple[float, ...]]:
        """Send these parts by their codecs; what each sum remarks."""
        parts, codecs = [part for part, _ in terms], [codec for _, codec in terms]
        said = collectives.sum_terms(link, codecs, whole(parts), key)
        return dict(zip((part.tensor for part in parts), said, strict=True))

    def _reduce_raw(self, link: Link, parts: Sequence[Part]) -> None:
        """Send these parts as they are, with the share of what they owe that is due.

        A mean that is not finite has delivered nothing; all ranks see the same one.
        """
        if not parts:
            return
        due = [
            (part.values, part.residual, share)
            for part in parts
            if part.residual is not None and (share := self.codec.share_due(self._state(part))) > 0
        ]
        for values, residual, share in due:
            values.add_(residual, alpha=share)
        reduce_joined(link, [part.values for part in parts])
        for values, residual, share in due:
            if is_finite(values):
                residual.mul_(1.0 - share)

    def _learn(
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

    def describe(self, tensor: int) -> str:
        """Where parameter number `tensor` stands, in a few words."""
        return self.codec.describe(self.states.get(tensor) or self.codec.start())

    def save(self, numbers: dict[str, int]) -> dict[str, Any]:
        """The states by parameter name, of tensors, numbers and words only."""
        return {n: self.states[i].fields() for n, i in numbers.items() if i in self.states}

    def load(self, saved: dict[str, Any], numbers: dict[str, int]) -> None:
        """Go on where `save` left off."""
        unknown = sorted(set(saved) - set(numbers))
        if unknown:
            raise ValueError(f"the state has learned of unknown parameters: {unknown}.")
        make = self.codec.state_type
        self.states = {numbers[name]: make(**fields) for name, fields in saved.items()}

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
