"""Codecs that learn from what they have seen how to encode the next step.

What is learned of a parameter is its `State`: handed to the codec and handed back, and the same
bit for bit on every rank. `reduction/adaptation.py` keeps the states.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from gradwire.codec import Codec, Seen, SummableCodec
from gradwire.key import Key


@dataclass(frozen=True)
class Layout:
    """How the values of a parameter lie in its flat vector: in the order of its strides.

    >>> images = torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> Layout.of(images).stride
    (48, 1, 12, 3)
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, parameter: Tensor) -> Layout:
        """Its own strides if they are dense; for others DDP lays gradients out as contiguous."""
        like = torch.empty_like(parameter, device="meta")
        if like.stride() != parameter.stride():
            like = torch.empty(parameter.shape, device="meta")
        return cls(tuple(parameter.shape), like.stride())

    @classmethod
    def flat(cls, numel: int) -> Layout:
        """That of a vector."""
        return cls((numel,), (1,))

    def view(self, flat: Tensor) -> Tensor:
        """`flat` with the shape of the parameter."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset())


@dataclass(frozen=True)
class State:
    """What a codec has learned of one parameter.

    Its fields are numbers, strings, tensors and tuples of tensors, so that it can be saved. A
    state is never changed in place.
    """

    outlives_workers: ClassVar[bool] = True  # is it of use to more or fewer workers?

    def save(self) -> dict[str, Any]:
        """Its fields by name; `type(state)(**state.save())` is the state again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def undone_if(self, undone: Tensor, before: State) -> State:
        """`before` if a scalar on the device says so; what it has no tensor for was zero."""
        changed = {}
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(before, field.name)
            if isinstance(now, Tensor):
                kept = torch.zeros_like(now) if then is None else then
                changed[field.name] = torch.where(undone, kept, now)
        return replace(self, **changed)


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class AdaptiveCodec(Codec, Generic[S]):
    """A codec that learns. Each parameter has a `State`, and in every step::

        mean, seen = ...                                 # through codec.codec_for(state, layout)
        state = codec.learn(state, layout, mean, seen, owing=...)

    Both are exact functions of what every rank has bit for bit, so states never come to differ.
    A vector on its own, as a payload, is encoded as in the first step.
    """  # fmt: skip

    state_type: ClassVar[type[State]]
    stands_alone: ClassVar[bool] = True  # is it of use to a vector on its own?
    host_only = "decides from step to step by numbers that only the CPU works out so far"

    @abstractmethod
    def start(self) -> S:
        """The state of a parameter of which nothing is known."""

    @abstractmethod
    def codec_for(self, state: S, layout: Layout) -> Codec:
        """What encodes this step."""

    @abstractmethod
    def learn(self, state: S, layout: Layout, mean: Tensor, seen: Seen, *, owing: bool) -> S:
        """The state after a step that gave `mean` (flat), and what was `seen` of it.

        owing: there is error feedback, so vectors hold what earlier steps have lost.
        """

    @abstractmethod
    def describe(self, state: S) -> str:
        """The state in a few words, for `Stats.learned`."""

    @abstractmethod
    def examples(self, numel: int) -> tuple[Codec, ...]:
        """Codecs that may encode a step of `numel` values, for benchmarks; the best first.

        Nothing was learned for them, so they are good for measuring and compiling only.
        """

    def share_due(self, state: S) -> float:
        """The share of the residual to add to the gradient of this step: all of it, mostly."""
        return 1.0

    def settle(self, state: S, learned: S, layout: Layout, owed: Tensor) -> None:
        """Bring the residual up to date, in place, after a step that made `learned` of `state`."""

    def counts(self, state: S, seen: Seen, numel: int, world: int) -> dict[str, float]:
        """What a step of `numel` values of each of `world` workers adds to `Stats.counts`."""
        return {}

    def doubts(self, states: Mapping[str, S]) -> str | None:
        """A warning about the states of these parameters, if there is reason for one."""
        return None

    def doubts_alone(self) -> str | None:
        """A warning about encoding a vector for which nothing was learned, if there is reason."""
        return None

    def first(self, numel: int) -> Codec:
        """What encodes a vector that nothing is known of."""
        return self.codec_for(self.start(), Layout.flat(numel))

    def max_nbytes(self, numel: int) -> int:
        return self.first(numel).max_nbytes(numel)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        return self.first(x.numel()).encode_into(x, out, key, offset)

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        first = self.first(out.numel())
        first.decode_into(payload, out, key, offset, weight=weight, accumulate=accumulate)

    def mean_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> Seen:
        return self.first(out.numel()).mean_into(payloads, out, keys, offset)


@dataclass(frozen=True)
class FittedCodec(AdaptiveCodec[S]):
    """One whose states are fitted from time to time to what they have gathered.

    A fit may be computed in any way, by one rank, and is broadcast. It is of a whole parameter, so
    vectors are never cut.
    """

    stands_alone = False

    @property
    def grain(self) -> int | None:
        return None

    @abstractmethod
    def is_due(self, state: S) -> bool:
        """Is it time for a fit?"""

    @abstractmethod
    def fit(self, state: S, layout: Layout) -> Tensor:
        """What one rank works out for all (float32, flat, of any length)."""

    @abstractmethod
    def adopt(self, state: S, layout: Layout, fitted: Tensor) -> S:
        """The state with what was worked out."""


@dataclass(frozen=True)
class AffineCodec(Codec):
    """An affine map to a shorter vector, its image, which goes through another codec.

    It commutes with the mean, so the images of all workers are reduced, and their mean is
    expanded. All of it is exact: every machine gets the same bits.

    It commutes with sums over steps, too. So what it loses need not be worked out in every step:
    `owe` adds vectors up, and `settle` takes off at the end what the images of all have said. What
    is owed meanwhile has no image, but for what was owed before the `first` step.
    """

    collective = "image_reduce"

    @property
    @abstractmethod
    def through(self) -> SummableCodec:
        """The codec of images."""

    @property
    @abstractmethod
    def image_numel(self) -> int:
        """How long an image is."""

    @property
    @abstractmethod
    def is_first(self) -> bool:
        """Is this the first step, in which what is owed is to be sent?"""

    @abstractmethod
    def project(self, x: Tensor, image: Tensor) -> tuple[float, float]:
        """Write the image of `x` (float32); the energies of it, and of what it loses of `x`."""

    @abstractmethod
    def expand(self, image: Tensor, out: Tensor) -> None:
        """Write what `image` says to `out` (float32)."""

    @abstractmethod
    def subtract_image(self, minus_image: Tensor, out: Tensor) -> None:
        """Take what the negative of `minus_image` says off `out` (float32)."""

    @abstractmethod
    def lost(self, x: Tensor, owed: Tensor) -> float:
        """About the energy that is lost of `x` and of all that was owed before, together."""

    @abstractmethod
    def owe(self, x: Tensor, owed: Tensor) -> None:
        """Add `x` to the vectors whose loss is `owed` (float32)."""

    @abstractmethod
    def settle(self, owed: Tensor) -> None:
        """Leave of all the vectors that were added to `owed` what their images did not say."""
