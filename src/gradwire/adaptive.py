"""Codecs that learn from the means they have seen how to encode the next ones.

What is learned of a parameter is its `State`: handed to the codec and handed back, and the same
bit for bit on every rank. `reduction/adaptation.py` keeps the states.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from gradwire.codec import Codec, ReducibleCodec


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

    def view(self, flat: Tensor) -> Tensor:
        """`flat` with the shape of the parameter."""
        return flat.as_strided(self.shape, self.stride, flat.storage_offset())


@dataclass(frozen=True)
class State:
    """What a codec has learned of one parameter.

    Its fields are numbers, words, tensors and tuples of tensors, so that it can be saved as it
    is. Nothing is ever changed in place.
    """

    def fields(self) -> dict[str, Any]:
        """What to save; `type(state)(**state.fields())` is the state again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class AffineCodec(Codec):
    """An affine map to a shorter vector, which goes through another codec.

    It commutes with the mean, so the images of all workers are reduced, and their mean is
    expanded. All of it is exact: every machine gets the same bits.
    """

    @property
    @abstractmethod
    def through(self) -> ReducibleCodec:
        """The codec of images."""

    @property
    @abstractmethod
    def image_numel(self) -> int:
        """How long an image is."""

    @abstractmethod
    def project(self, x: Tensor, image: Tensor) -> tuple[float, float]:
        """Write the image of `x` (float32); the energies of it, and of what it loses of `x`."""

    @abstractmethod
    def expand(self, image: Tensor, out: Tensor) -> None:
        """Write what `image` says to `out` (float32)."""

    @abstractmethod
    def subtract(self, minus_image: Tensor, out: Tensor) -> None:
        """Subtract what the negative of `minus_image` says from `out` (float32)."""


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class LearningCodec(Codec, Generic[S]):
    """A codec that learns from the means it has seen how to encode the next ones.

    Each parameter has a `State`, and in every step::

        step_codec = codec.codec_for(state, layout)      # None: send this step raw
        mean, remark = ...                               # by code_reduce; energies sent and lost
        state = codec.learn(state, layout, mean, remark, owing=...)
        if codec.is_due(state):
            state = codec.adopt(state, layout, lesson)   # codec.lesson(...) of rank 0

    All but `lesson` are exact functions of what every rank has bit for bit. A lesson may be
    computed in any way, by one rank, and is broadcast, so that states never come to differ.

    On its own, as a payload, a vector has no state to be encoded with.
    """

    state_type: ClassVar[type[State]]

    @abstractmethod
    def start(self) -> S:
        """The state of a parameter of which nothing is known."""

    @abstractmethod
    def codec_for(self, state: S, layout: Layout) -> AffineCodec | None:
        """What encodes this step."""

    @abstractmethod
    def share_due(self, state: S) -> float:
        """What part of the residual, if there is one, is to be delivered in this raw step."""

    @abstractmethod
    def learn(
        self,
        state: S,
        layout: Layout,
        mean: Tensor,
        remark: tuple[float, ...],
        *,
        owing: bool,
    ) -> S:
        """The state after a step that gave `mean` (flat) and, if it was not raw, `remark`.

        owing: there is error feedback, so vectors hold what earlier steps have lost.
        """

    @abstractmethod
    def is_due(self, state: S) -> bool:
        """Is it time for a lesson?"""

    @abstractmethod
    def lesson(self, state: S, layout: Layout) -> Tensor:
        """What one rank works out for all (float32, flat, of any length)."""

    @abstractmethod
    def adopt(self, state: S, layout: Layout, lesson: Tensor) -> S:
        """The state with the lesson learned."""

    @abstractmethod
    def example(self, numel: int) -> AffineCodec:
        """What might encode a step of `numel` values once it has learned.

        Nothing was learned for it, so it is good for measuring time and for nothing else.
        """

    @abstractmethod
    def describe(self, state: S) -> str:
        """The state in a few words, for `Stats`."""
