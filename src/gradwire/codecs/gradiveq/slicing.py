"""Parameters cut into the slices of GradiVeQ; see `__init__.py` for the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from gradwire.adaptive import Layout

_SHORTEST = 32


@dataclass(frozen=True)
class Slicing:
    """A parameter cut into slices of `size` values, in the order of the paper (its fig. 3).

    A convolution's weights (F, D, H, W) are walked as (H, W, D, F): what all filters have at one
    place lies together. A linear layer, and a convolution of one tap, is walked row by row.
    """

    layout: Layout
    size: int

    @classmethod
    def of(cls, layout: Layout, least: int) -> Slicing:
        """Slices of at least `least` values: a multiple of F * D, or of the row of a matrix."""
        shape, numel = layout.shape, math.prod(layout.shape)
        row = math.prod(shape[:2]) if is_convolution(shape) else math.prod(shape[1:])
        return cls(layout, min(row * math.ceil(least / row), numel))

    @property
    def numel(self) -> int:
        """Values of the parameter."""
        return math.prod(self.layout.shape)

    @property
    def lengths(self) -> list[int]:
        """How long slices may be: `size`, a half of it, and so on.

        >>> Slicing(Layout.flat(1568), 1568).lengths
        [1568, 784, 392, 196, 98, 49]
        """
        found = [self.size]
        while found[-1] % 2 == 0 and found[-1] >= 2 * _SHORTEST:
            found.append(found[-1] // 2)
        return found

    @property
    def count(self) -> int:
        """How many whole slices there are."""
        return self.numel // self.size

    def cut(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The slices (count, size) and the tail of a flat vector, float32."""
        return self.split(self.ordered(flat))

    def ordered(self, flat: Tensor) -> Tensor:
        """A flat vector in the order of the slices, float32; itself if it is so already."""
        return self._view(flat).reshape(-1).float()

    def split(self, ordered: Tensor) -> tuple[Tensor, Tensor]:
        """Slices and tail of values that are in order."""
        whole = self.count * self.size
        return ordered[:whole].view(self.count, self.size), ordered[whole:]

    def restore(self, ordered: Tensor, out: Tensor) -> None:
        """Write values that are in order back to a flat vector, unless they are there."""
        target = self._view(out)
        if ordered.data_ptr() != out.data_ptr():
            target.copy_(ordered.view(target.shape))

    def _view(self, flat: Tensor) -> Tensor:
        view = self.layout.view(flat)
        if not is_convolution(self.layout.shape):
            return view
        return view.permute(*range(2, view.dim()), 1, 0)


def is_convolution(shape: tuple[int, ...]) -> bool:
    """Has the parameter filters of more than one tap?"""
    return len(shape) > 2 and math.prod(shape[2:]) > 1
