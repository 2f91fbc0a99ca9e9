"""What a worker owes: what its messages have not said of its gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.algorithms.asynchronous.layout import Layout, Section
from gradwire.key import Key


class Owed:
    """Error feedback, by section: where the codec is biased, or wherever `feedback` says.

    What is owed changes when a push has counted, and never before: one that was too late, or was
    lost, leaves it as it was.
    """

    def __init__(self, layout: Layout, feedback: bool | None) -> None:
        self._layout = layout
        self._sections = [each for each in layout.sections if _feeds_back(each, feedback)]
        self._owed = torch.zeros(layout.numel if self._sections else 0)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self._owed.nbytes

    @property
    def vector(self) -> Tensor:
        """A copy of it; empty if nothing is ever owed."""
        return self._owed.clone()

    def added_to(self, gradient: Tensor) -> Tensor:
        """What is to be sent now: the gradient, in place, and what is owed."""
        return gradient.add_(self._owed) if self._sections else gradient

    def keep(self, owing: Tensor, body: bytes, key: Key) -> None:
        """Owe what `body` has not said of `owing`."""
        if not self._sections:
            return
        said = torch.empty_like(owing)
        self._layout.decode(memoryview(body), key, said)
        for section in self._sections:
            part = slice(section.start, section.stop)
            torch.sub(owing[part], said[part], out=self._owed[part])


def _feeds_back(section: Section, feedback: bool | None) -> bool:
    return section.codec.owes if feedback is None else feedback
