"""`Key` names a random stream: the same key gives the same bits on every machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import ClassVar


class Hop(IntEnum):
    """Where on its way a vector is encoded, so that each place draws random bits of its own."""

    OWN = 0  # by the worker that has it
    MEAN = 1  # by the owner of a shard, for all
    TOTAL = 2  # where the owner of a shard adds codes
    WEIGHTS = 3  # by the owner of weights that are gathered
    ROTATION = 128  # flips a bit of the others: the signs of a rotation, beside a dither
    START = 254  # nothing is encoded: where a power iteration begins
    PERMUTATION = 255  # nothing is encoded: it puts the workers in an order


@dataclass(frozen=True)
class Key:
    """Names one random stream: Philox-4x32 is keyed by `seed` and counts through the rest.

    `tensor` is the parameter, `rank` the worker, `hop` one of `Hop`, or any byte in a message.
    """

    seed: int = 0
    step: int = 0
    tensor: int = 0
    rank: int = 0
    hop: int = 0

    LIMITS: ClassVar[dict[str, int]] = {"seed": 64, "step": 32, "tensor": 32, "rank": 24, "hop": 8}

    def __post_init__(self) -> None:
        for name, bits in self.LIMITS.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < 1 << bits:
                raise ValueError(f"`{name}` of a Key must be in [0, 2**{bits}), got {value!r}.")
        object.__setattr__(self, "hop", int(self.hop))  # a bug report spells plain numbers

    def words(self) -> tuple[int, int, int, int, int]:
        """Philox's counter words 1 to 3 and its two key words; word 0 counts through the vector."""
        return (
            self.tensor,
            self.rank | self.hop << 24,
            self.step,
            self.seed & 0xFFFFFFFF,
            self.seed >> 32,
        )

    def of(self, **changes: int) -> Key:
        """This key with some of its fields changed."""
        return replace(self, **changes)
