"""What the learning codec of a reducer has learned so far, by parameter.

It sends some steps raw, and says how much of a residual these are to deliver.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire import collectives
from gradwire.adaptive import AffineCodec, Layout, LearningCodec, State
from gradwire.codecs.cast import Identity
from gradwire.collectives.feedback import settle, take, target
from gradwire.collectives.parts import Part, whole
from gradwire.collectives.statistics import Job
from gradwire.key import Key
from gradwire.transport.link import Link


class Learner:
    """Keeps a state for each parameter, bitwise equal on every rank."""

    def __init__(self, codec: LearningCodec[Any], *, owing: bool) -> None:
        self.codec = codec
        self.owing = owing
        self.states: dict[int, State] = {}

    def reduce(self, link: Link, parts: Sequence[Part], key: Key) -> None:
        """Each part by what its state says: one message of images, one of raw values."""
        maps = {part.tensor: self.codec_for(part) for part in parts}
        self._reduce_raw(link, [part for part in parts if maps[part.tensor] is None], key)
        mapped = [(part, each) for part in parts if (each := maps[part.tensor]) is not None]
        remarks = self._reduce_images(link, mapped, key) if mapped else {}
        self._learn(link, parts, [remarks.get(part.tensor, ()) for part in parts])

    def codec_for(self, part: Part) -> AffineCodec | None:
        """What encodes this part in this step; None: it travels raw."""
        return self.codec.codec_for(self._state(part), _layout(part))

    def _reduce_images(
        self, link: Link, mapped: Sequence[tuple[Part, AffineCodec]], key: Key
    ) -> dict[int, tuple[float, ...]]:
        """Reduce the images of these parts; the energies sent and lost of each."""
        pieces, maps = whole([part for part, _ in mapped]), [each for _, each in mapped]
        sources = take(link, pieces)
        sizes = [each.image_numel for each in maps]
        images = torch.split(link.floats("images", sum(sizes)), sizes)
        with link.account.timed("encode"):
            energies = torch.tensor(
                [m.project(x, y) for m, x, y in zip(maps, sources, images, strict=True)],
                dtype=torch.float64,
            )
        link.sum_in_order(energies.view(-1))
        link.account.message(sum(piece.numel for piece in pieces), energies.nbytes)
        shadows = whole([Part(y, p.part.tensor) for y, p in zip(images, pieces, strict=True)])
        sums = collectives.sum_codes(link, maps[0].through, shadows, images, key)
        with link.account.timed("decode"):
            for piece, source, each, image, (job, total, own) in zip(
                pieces, sources, maps, images, sums, strict=True
            ):
                result = target(link, piece)
                job.decode(total, image)
                each.expand(image, result)
                settle(piece, source, result, partial(_subtract, each, job, own, image))
        means = (energies / link.size).tolist()
        return {piece.part.tensor: tuple(m) for piece, m in zip(pieces, means, strict=True)}

    def _reduce_raw(self, link: Link, parts: Sequence[Part], key: Key) -> None:
        """Send these parts as they are, with the share of what they owe that is due.

        A mean that is not finite has delivered nothing; all ranks see the same one.
        """
        if not parts:
            return
        shares = [self.codec.share_due(self._state(part)) for part in parts]
        with link.account.timed("encode"):
            inputs = [
                part.values if part.residual is None or not share
                else (part.residual * share).add_(part.values)
                for part, share in zip(parts, shares, strict=True)
            ]  # fmt: skip
        sums = collectives.sum_codes(link, Identity(), whole(parts), inputs, key)
        link.account.message(sum(part.values.numel() for part in parts), 0)
        with link.account.timed("decode"):
            for part, share, (job, total, _) in zip(parts, shares, sums, strict=True):
                result = target(link, job.piece)
                job.decode(total, result)
                owed = result if part.residual is None else part.residual
                settle(job.piece, owed, result, partial(_keep, 1.0 - share))

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
        joined = joined if link.rank == 0 else torch.empty(sum(sizes.tolist()))
        if joined.numel():
            link.broadcast(joined)
        return [lesson.clone() for lesson in torch.split(joined, sizes.tolist())]


def _subtract(each: AffineCodec, job: Job, own: Tensor, room: Tensor, out: Tensor) -> None:
    """Take what this worker's own codes say off `out`."""
    job.subtract(own, room.zero_())
    each.subtract(room, out)


def _keep(share: float, out: Tensor) -> None:
    if share != 1:
        out.mul_(share)


def _layout(part: Part) -> Layout:
    return part.layout or Layout((part.values.numel(),), (1,))
