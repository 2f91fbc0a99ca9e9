"""Memory that is used again: steady training allocates nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_CPU = torch.device("cpu")
_local = threading.local()


class Scratch:
    """Named stretches of memory, each as long as the longest that was ever asked for."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(
        self, name: str, numel: int, dtype: torch.dtype, device: torch.device = _CPU
    ) -> Tensor:
        """`numel` values of the memory called `name`; what they held before is lost."""
        kept = self._kept.get((name, dtype, device))
        if kept is None or kept.numel() < numel:
            kept = self._kept[name, dtype, device] = torch.empty(numel, dtype=dtype, device=device)
        return kept[:numel]

    @property
    def nbytes(self) -> int:
        """How much memory is kept."""
        return sum(kept.nbytes for kept in self._kept.values())

    def free(self) -> None:
        """Let go of all of it."""
        self._kept.clear()


def of_thread() -> Scratch:
    """The memory that codecs use in this thread."""
    scratch: Scratch = _local.__dict__.setdefault("scratch", Scratch())
    return scratch


@contextmanager
def using(scratch: Scratch) -> Iterator[None]:
    """Let codecs in this thread use `scratch` for a while."""
    before, _local.scratch = of_thread(), scratch
    try:
        yield
    finally:
        _local.scratch = before
