"""What the workers train on, and how they share it out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Examples and what a model should say about them, the first dimension in step."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Dataset:
    """What a task trains on, and what its score is measured on."""

    train: Split
    test: Split


def batches(
    split: Split, batch: int, seed: int, rank: int, num_workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this worker's batches for ever, in an order that only `seed` decides.

    Every worker shuffles alike and takes every `num_workers`-th example, so that no two see
    the same one in an epoch. The few that do not fill a batch on all of them wait for the
    next epoch's order.

    >>> split = Split(torch.arange(9), torch.arange(9))
    >>> shards = [next(batches(split, 4, seed=0, rank=r, num_workers=2))[0] for r in (0, 1)]
    >>> len(set(torch.cat(shards).tolist()))
    8
    """
    generator = torch.Generator().manual_seed(seed)
    used = len(split) // (batch * num_workers) * batch * num_workers
    while True:
        order = torch.randperm(len(split), generator=generator)[:used]
        for chosen in torch.split(order[rank::num_workers], batch):
            yield split.inputs[chosen], split.targets[chosen]


def delayed(
    examples: Iterator[tuple[Tensor, Tensor]], seconds: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same, each after a wait: so a worker is slow without keeping the processor busy."""
    for batch in examples:
        time.sleep(seconds)
        yield batch
