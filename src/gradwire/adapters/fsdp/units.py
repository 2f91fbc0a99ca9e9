"""What FSDP reduces and gathers at a time: the parameters of one FSDP module, in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Unit:
    """An FSDP module, and which of how many shards of it this worker has.

    `first` is the number of its first random stream. `gradients` and `weights` are like its two
    buffers, padding included, but on the meta device: they have no values.
    """

    name: str
    first: int
    shard: int
    shards: int
    gradients: Tensor
    weights: Tensor

    @property
    def label(self) -> str:
        """What to call it in a table."""
        return self.name or "root"

    @property
    def own(self) -> Tensor:
        """Like this worker's shard of the gradients."""
        return self.gradients[: self.gradients.numel() // self.shards]

    @property
    def within(self) -> str:
        """What its residual within the group of shards is kept by."""
        return f"within/{self.name}"

    @property
    def between(self) -> str:
        """The same between replicas."""
        return f"between/{self.name}"

    def stream(self, leg: int) -> int:
        """The number of the first shard on a leg."""
        return self.first + leg * self.shards

    def check_whole(self, buffer: Tensor) -> None:
        """Refuse a buffer of other parameters than those that were trained at `attach`."""
        if buffer.numel() != self.gradients.numel():
            raise RuntimeError(
                f"the gradients of '{self.name}' are {buffer.numel()} values, but its trained "
                f"parameters had {self.gradients.numel()} when gradwire was attached, and error "
                "feedback needs the same ones in every step. Call "
                "`set_reduce_scatter_unused_params(True)` if some get no gradient, attach again "
                "after freezing, or attach with `error_feedback=False`."
            )


def first_streams(shards: Sequence[int], legs: int) -> list[int]:
    """The number of the first stream of each unit, if there is one for each shard and leg.

    >>> first_streams([4, 2, 2], legs=2)
    [0, 8, 12]
    """
    return list(accumulate((legs * count for count in shards[:-1]), initial=0))
