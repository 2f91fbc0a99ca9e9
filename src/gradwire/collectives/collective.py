"""What a collective is: it replaces the gradients of workers by their mean, through codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from gradwire.codec import Codec, Seen
from gradwire.collectives.parts import Slice
from gradwire.kernels.formats.debt import Debt
from gradwire.key import Key
from gradwire.transport.link import Link

Sighting = tuple[Slice, Seen]


class Collective(ABC):
    """One way for codecs to get the mean of vectors to all workers.

    `simulate` says in one process what the mean is; `reduce` must give the same bits on every rank.
    """

    name: ClassVar[str]

    @abstractmethod
    def check(self, codec: Codec, world: int) -> None:
        """Refuse a codec that cannot travel this way, or not among `world` workers."""

    @abstractmethod
    def message_nbytes(self, codec: Codec, numel: int, world: int) -> int:
        """The most bytes that a worker's message of `numel` values takes."""

    @abstractmethod
    def reduce(self, link: Link, pieces: Sequence[Slice], key: Key) -> list[Sighting]:
        """Replace each piece by its mean, and return what was seen, the same on every rank."""

    @abstractmethod
    def simulate(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> Tensor:
        """The mean of flat `vectors`, one of each rank in order (float32)."""

    def rehearse(self, codec: Codec, vectors: Sequence[Tensor], key: Key) -> None:
        """Call the kernels of a step, before the first one."""
        mean = self.simulate(codec, vectors, key)
        payload = codec.encode(vectors[0], key)
        codec.subtract(payload, mean, key)
        codec.encode_owing_into(vectors[0], Debt(mean, vectors[0], vectors[0][:2]), payload, key)
