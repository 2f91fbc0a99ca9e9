"""How a parameter travels: through which codec, by which collective, with what kept of it."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire import collectives
from gradwire.adaptive import LearningCodec
from gradwire.codec import Codec, ReducibleCodec, SummableCodec
from gradwire.reduction.adaptation import Learner


@dataclass(frozen=True, eq=False)
class Route:
    """A codec with the collective that carries it; there is one for each codec of a reducer."""

    codec: Codec
    collective: str
    error_feedback: bool
    world: int
    learner: Learner | None = None

    @classmethod
    def of(
        cls,
        codec: Codec,
        world: int,
        *,
        collective: str | None = None,
        error_feedback: bool | None = None,
    ) -> Route:
        """What suits `codec` among `world` workers, or what is asked for if that makes sense."""
        collective = collective or collectives.choose(codec, world)
        collectives.check(codec, collective, world)
        feedback = not codec.unbiased if error_feedback is None else error_feedback
        if feedback and codec.num_dependent(world):
            raise ValueError(
                f"payloads of {codec!r} need each other to be decoded, so none says what was lost; "
                "leave `error_feedback` out, or use `DQSG`."
            )
        if feedback and collective == "two_shot" and not codec.unbiased:
            raise ValueError(
                f"two_shot encodes the mean once more, and what a biased codec such as {codec!r} "
                "loses of it no worker could feed back; use `all_gather`."
            )
        learner = None
        if isinstance(codec, LearningCodec):
            if collective != "code_reduce":
                raise ValueError(
                    f"{codec!r} learns from sums and travels by code_reduce, got "
                    f"`collective={collective!r}`; leave it out."
                )
            learner = Learner(codec, owing=feedback)
        return cls(codec, collective, feedback, world, learner)

    @property
    def is_dependent(self) -> bool:
        """Do payloads need those of others to be decoded?"""
        return self.codec.num_dependent(self.world) > 0

    def max_nbytes(self, numel: int) -> int:
        """The most bytes that a worker's message of `numel` values takes."""
        if self.collective == "code_reduce" and isinstance(self.codec, ReducibleCodec):
            return self.codec.code_nbytes(numel, self.world)
        if self.collective == "all_reduce" and isinstance(self.codec, SummableCodec):
            return self.codec.term_nbytes(numel, self.world)
        return self.codec.max_nbytes(numel)

    @property
    def has_fixed_size(self) -> bool:
        """Is `max_nbytes` the exact number?"""
        return self.codec.fixed_size and self.learner is None and not self.is_dependent
