"""Training data: MNIST's IDX files, and how the workers share out the examples."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

SUBSET = Path(__file__).with_name("mnist")
UNSIGNED_BYTE = 8  # IDX's code for the type of the elements


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


def load_mnist(directory: Path | None = None) -> Dataset:
    """Read MNIST's four files from `directory`, or the subset that comes with the package.

    >>> digits = load_mnist()
    >>> len(digits.train), len(digits.test)
    (10000, 2000)
    """
    directory = directory or SUBSET
    return Dataset(_load_split(directory, "train"), _load_split(directory, "t10k"))


def _load_split(directory: Path, name: str) -> Split:
    images = _read_idx(directory, f"{name}-images-idx3-ubyte")
    labels = _read_idx(directory, f"{name}-labels-idx1-ubyte")
    if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
        raise ValueError(
            f"the `{name}` images and labels in {directory} do not belong together: "
            f"shapes {tuple(images.shape)} and {tuple(labels.shape)}."
        )
    return Split(images.unsqueeze(1), labels.long())


def _read_idx(directory: Path, name: str) -> Tensor:
    """Read one array: two zero bytes, the element type, the rank, the sizes, the elements."""
    path = _find(directory, name)
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from None
    rank = int(name[name.index("idx") + 3])
    start = 4 + 4 * rank
    shape = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4)]
    if raw[:4] != bytes([0, 0, UNSIGNED_BYTE, rank]) or len(raw) != start + math.prod(shape):
        raise ValueError(f"{path} is not a whole IDX file of {rank}-dimensional bytes.")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8, offset=start).view(shape)


def _find(directory: Path, name: str) -> Path:
    for path in (directory / f"{name}.gz", directory / name):
        if path.is_file():
            return path
    raise ValueError(f"{directory} holds no `{name}.gz`, one of the four files of MNIST.")


def batches(
    split: Split, batch: int, seed: int, rank: int, num_workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this worker's batches for ever, in an order that only `seed` decides.

    Every worker shuffles alike and takes every `num_workers`-th example, so that no two see
    the same one in an epoch. The few that do not fill a batch on all of them wait for the
    next epoch's order.

    >>> digits = load_mnist().test
    >>> first = [next(batches(digits, 5, seed=0, rank=r, num_workers=2))[0] for r in (0, 1)]
    >>> first[0].shape, bool((first[0] == first[1]).all())
    (torch.Size([5, 1, 28, 28]), False)
    """
    generator = torch.Generator().manual_seed(seed)
    used = len(split) // (batch * num_workers) * batch * num_workers
    while True:
        order = torch.randperm(len(split), generator=generator)[:used]
        for chosen in torch.split(order[rank::num_workers], batch):
            yield split.inputs[chosen], split.targets[chosen]
