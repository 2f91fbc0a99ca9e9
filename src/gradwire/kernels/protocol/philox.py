"""Random bits that depend on a key and a counter alone."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.key import Key


class Philox(Protocol):
    """Random words; the other kernels draw their random bits in place."""

    def philox(self, counter: Tensor, key: Key) -> Tensor:
        """Philox-4x32-7 [1]: four words for each counter word 0; int64 of (4, *counter.shape).

        Seven rounds are the fewest that its authors found to pass BigCrush; encoding is a sixth
        faster with them than with the usual ten.

        [1] Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
        """
