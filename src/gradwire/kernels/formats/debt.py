"""Error feedback of one vector, as whoever encodes it is told of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Debt(NamedTuple):
    """What is owed of a vector x, all of it float32.

    What is encoded is x + residual * shares[0]. What the codes do not say of that, plus residual *
    shares[1], is owed from then on. Every product and every sum is rounded.

    owed: where that is written; it may be x itself.
    residual: what was owed before, which stays as it is; None: nothing.
    shares: how much of it is due and how much is not, two values; None: all is due.
    """

    owed: Tensor
    residual: Tensor | None = None
    shares: Tensor | None = None

    def source(self, x: Tensor) -> Tensor:
        """Write to `owed` what is to be encoded."""
        if self.residual is None:
            return self.owed.copy_(x)
        if self.shares is None:
            return torch.add(self.residual, x, out=self.owed)
        return torch.mul(self.residual, self.shares[0], out=self.owed).add_(x)

    def after(self, count: int) -> Debt:
        """That of the vector without so many values at its start."""
        residual = None if self.residual is None else self.residual[count:]
        return Debt(self.owed[count:], residual, self.shares)

    def leave(self) -> None:
        """Add what was not due, once `owed` has what was not said."""
        if self.residual is not None and self.shares is not None:
            self.owed.add_(self.residual * self.shares[1])
