"""What an adaptive codec has learned so far, by parameter."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradwire.adaptive import AdaptiveCodec, FittedCodec, Layout, State
from gradwire.codec import Codec, Seen
from gradwire.collectives.choose import COLLECTIVES
from gradwire.collectives.collective import Collective, Sighting
from gradwire.collectives.parts import Part, Slice
from gradwire.key import Key
from gradwire.transport.device import HOST, Device
from gradwire.transport.link import Link

_logger = logging.getLogger(__name__)


class Adaptation:
    """Keeps a state for each parameter, bitwise equal on every rank.

    All ranks know the same, so one of them, the one that `speaks`, logs the codec's warning: once,
    at the beginning of a step, when everything learned in the last one is known.
    """

    def __init__(
        self,
        codec: AdaptiveCodec[Any],
        collective: Collective,
        world: int,
        *,
        owing: bool,
        speaks: bool,
        device: Device = HOST,
    ) -> None:
        self.codec = codec
        self.states: dict[int, State] = {}
        self.counts: Counter[str] = Counter()
        self._collective = collective
        self._device = device
        self._owing = owing
        self._world = world
        self._speaks = speaks
        self._labels: dict[int, str] = {}
        self._before: dict[int, State] = {}
        self._lock = threading.Lock()  # buckets may end in several threads at once

    def begin_step(self) -> None:
        """Log what the codec has to say about the last step."""
        if not self._speaks:
            return
        with self._lock:
            states = {self._labels[tensor]: self.states[tensor] for tensor in self._labels}
        doubts = self.codec.doubts(states)
        if doubts is not None:
            self._speaks = False
            _logger.warning(doubts)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        """Each piece through the codec that its state asks for, by the collective of that."""
        by_collective: dict[Collective, list[Slice]] = {}
        for piece in pieces:
            adapted = replace(piece, part=self._adapted(piece.part))
            by_collective.setdefault(self._way_of(adapted.codec), []).append(adapted)
        sightings = [
            sighting
            for collective in sorted(by_collective, key=lambda each: each.name)
            for sighting in collective.reduce(link, by_collective[collective], key)
        ]
        if isinstance(self.codec, FittedCodec):  # pieces are whole parts
            parts = [piece.part for piece in pieces]
            self._learn(parts, sightings)
            self._fit(self.codec, link, parts)
        return sightings

    def first(self, layout: Layout) -> tuple[Codec, Collective]:
        """What encodes the first step of a parameter, and how it travels."""
        codec = self.codec.codec_for(self.codec.start(), layout)
        return codec, self._way_of(codec)

    def _way_of(self, codec: Codec) -> Collective:
        return self._collective if codec.collective is None else COLLECTIVES[codec.collective]

    def finish(self, parts: Sequence[Part], sightings: Sequence[Sighting]) -> None:
        """Learn from the means of a bucket, and from what was seen, once all its jobs are done."""
        if not isinstance(self.codec, FittedCodec):
            self._learn(parts, sightings)

    def _learn(self, parts: Sequence[Part], sightings: Sequence[Sighting]) -> None:
        found: dict[int, list[Sighting]] = {}
        for sighting in sightings:
            found.setdefault(sighting[0].part.tensor, []).append(sighting)
        for part in parts:
            seen, state, layout = (
                _joined(found.get(part.tensor, [])),
                self.state(part),
                _layout(part),
            )
            learned = self.codec.learn(state, layout, part.values, seen, owing=self._owing)
            if part.residual is not None:
                self.codec.settle(state, learned, layout, part.residual)
            counts = self.codec.counts(state, seen, part.values.numel(), self._world)
            with self._lock:
                self.counts.update(counts)
                self.states[part.tensor] = learned
                self._labels[part.tensor] = part.label

    def state(self, part: Part) -> State:
        """Where a parameter stands."""
        return self.states.get(part.tensor) or self.codec.start()

    def describe(self, tensor: int) -> str:
        """Where parameter number `tensor` stands, in a few words."""
        return self.codec.describe(self.states.get(tensor) or self.codec.start())

    def remember(self) -> None:
        """Keep what is known now, for `undo`."""
        self._before = dict(self.states)

    def undo(self) -> None:
        """Forget what was learned since `remember`."""
        self.states = dict(self._before)

    def undo_if(self, undone: Tensor) -> None:
        """`undo` if a scalar on the device says so."""
        for tensor, state in self.states.items():
            before = self._before.get(tensor) or self.codec.start()
            self.states[tensor] = state.undone_if(undone, before)

    def save(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        """The states by parameter name, of tensors, numbers and words only."""
        with self._device.entered():
            return {n: self.states[i].save() for n, i in numbers.items() if i in self.states}

    def loaded(
        self, saved: Mapping[str, Any], numbers: Mapping[str, int], *, same_world: bool
    ) -> dict[int, State]:
        """What `save` has saved, to be put into `states`."""
        unknown = sorted(set(saved) - set(numbers))
        if unknown:
            raise ValueError(f"the state has learned of unknown parameters: {unknown}.")
        make = self.codec.state_type
        if not same_world and not make.outlives_workers:
            return {}
        with self._device.entered():
            return {numbers[n]: make(**self._placed(fields)) for n, fields in saved.items()}

    def _placed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What was saved, where jobs work."""
        memory = self._device.memory
        return {n: x.to(memory) if isinstance(x, Tensor) else x for n, x in fields.items()}

    def _adapted(self, part: Part) -> Part:
        state = self.state(part)
        codec = self.codec.codec_for(state, _layout(part))
        due = self.codec.share_due(state)
        return replace(part, codec=codec, share=part.share * due if due else 0.0)

    def _fit(self, codec: FittedCodec[Any], link: Link, parts: Sequence[Part]) -> None:
        """Fit the states that are due for it. Rank 0 works it out: others may find other bits."""
        due = [part for part in parts if codec.is_due(self.state(part))]
        if not due:
            return
        with link.account.timed("encode"):
            fits = [codec.fit(self.state(p), _layout(p)) for p in due] if link.rank == 0 else []
        for part, fitted in zip(due, _broadcast(link, fits, len(due)), strict=True):
            self.states[part.tensor] = codec.adopt(self.state(part), _layout(part), fitted)


def _broadcast(link: Link, tensors: Sequence[Tensor], count: int) -> list[Tensor]:
    """The `count` tensors of rank 0 (float32, flat)."""
    sizes = torch.zeros(count, dtype=torch.int64)
    if link.rank == 0:
        sizes = torch.tensor([tensor.numel() for tensor in tensors])
    link.broadcast(sizes)
    joined = torch.cat(list(tensors)) if link.rank == 0 else torch.empty(sum(sizes.tolist()))
    if joined.numel():
        link.broadcast(joined)
    return [tensor.clone() for tensor in torch.split(joined, sizes.tolist())]


def _joined(sightings: Sequence[Sighting]) -> Seen:
    """What was seen of a parameter: the mean over its slices, weighted by their values."""
    if len(sightings) <= 1:
        return sightings[0][1] if sightings else ()
    values = sum(piece.numel for piece, _ in sightings)
    columns = zip(*(seen for _, seen in sightings), strict=True)
    sizes = [piece.numel for piece, _ in sightings]
    return tuple(
        sum(number * n for number, n in zip(column, sizes, strict=True)) / values
        for column in columns
    )


def _layout(part: Part) -> Layout:
    return part.layout or Layout.flat(part.values.numel())
