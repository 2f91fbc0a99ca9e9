"""How a parameter travels: through which codec, by which collective, with what kept of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire import collectives
from gradwire.adaptive import AdaptiveCodec, Layout
from gradwire.codec import Codec
from gradwire.collectives import Collective
from gradwire.collectives.collective import Sighting
from gradwire.collectives.parts import Slice
from gradwire.key import Key
from gradwire.reduction.adaptation import Adaptation
from gradwire.transport.device import HOST, Device
from gradwire.transport.link import Link


@dataclass(frozen=True, eq=False)
class Route:
    """A codec with the collective that carries it; there is one for each codec of a reducer."""

    codec: Codec
    collective: Collective
    error_feedback: bool
    world: int
    adaptation: Adaptation | None = None

    @classmethod
    def of(
        cls,
        codec: Codec,
        world: int,
        *,
        collective: str | None = None,
        error_feedback: bool | None = None,
        speaks: bool = True,
        device: Device = HOST,
    ) -> Route:
        """What suits `codec` among `world` workers, or what is asked for if that makes sense."""
        is_adaptive, name = isinstance(codec, AdaptiveCodec), codec.collective
        if is_adaptive and collective is not None and name not in (None, collective):
            raise ValueError(
                f"{codec!r} learns from sums and travels by {name}, got "
                f"`collective={collective!r}`; leave it out."
            )
        chosen = collectives.choose(_first(codec), world, collective)
        feedback = codec.owes if error_feedback is None else error_feedback
        if feedback:
            _check_feedback(codec, chosen)
        adaptation = None
        if isinstance(codec, AdaptiveCodec):
            adaptation = Adaptation(
                codec, chosen, world, owing=feedback, speaks=speaks, device=device
            )
        return cls(codec, chosen, feedback, world, adaptation)

    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        """Replace each piece by its mean."""
        by = self.collective if self.adaptation is None else self.adaptation
        return by.reduce(link, pieces, key)

    def first(self, layout: Layout) -> tuple[Codec, Collective]:
        """What encodes the first step of a parameter, and how it travels."""
        if self.adaptation is not None:
            return self.adaptation.first(layout)
        return self.codec, self.collective

    def max_nbytes(self, layout: Layout) -> int:
        """The most bytes that a worker's message of a parameter takes, going by its first step."""
        codec, collective = self.first(layout)
        return collective.message_nbytes(codec, math.prod(layout.shape), self.world)

    @property
    def has_fixed_size(self) -> bool:
        """Is `max_nbytes` the exact number?"""
        return self.codec.fixed_size and self.adaptation is None


def _first(codec: Codec) -> Codec:
    """What encodes the first step."""
    return codec.first(1) if isinstance(codec, AdaptiveCodec) else codec


def _check_feedback(codec: Codec, collective: Collective) -> None:
    if not codec.feeds_back:
        raise ValueError(
            f"payloads of {codec!r} need each other to be decoded, so none says what was lost; "
            "leave `error_feedback` out, or use `DQSG`."
        )
    if collective.name == "two_shot" and not codec.unbiased:
        raise ValueError(
            f"two_shot encodes the mean once more, and what a biased codec such as {codec!r} "
            "loses of it no worker feeds back; use `relay`, whose owners do, or `all_gather`."
        )
