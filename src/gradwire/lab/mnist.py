"""Handwritten digits: the IDX files of MNIST, and the two networks that read them."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from gradwire.lab.data import Dataset, Split

SUBSET = Path(__file__).with_name("mnist_subset")
UNSIGNED_BYTE = 8  # IDX's code for the type of the elements


def load_mnist(directory: Path | None = None) -> Dataset:
    """Read MNIST's four files from `directory`, or the subset that comes with the package.

    >>> digits = load_mnist()
    >>> len(digits.train), len(digits.test)
    (10000, 2000)
    """
    directory = directory or SUBSET
    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise ValueError(
            f"{directory} {what}; `--data` must be a directory with the four files of MNIST."
        )
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


class Normalize(nn.Module):
    """Bytes to floats of mean 0 and deviation 1, so that data stays small until it is used."""

    def forward(self, images: Tensor) -> Tensor:
        """Scale with MNIST's own mean and deviation."""
        return (images.float() / 255 - 0.1307) / 0.3081


def lenet() -> nn.Module:
    """Build a LeNet-like network whose parameters are nearly all in tensors large enough to encode.

    >>> sum(p.numel() for p in lenet().parameters())
    1630154
    """
    return nn.Sequential(
        Normalize(),
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def perceptron() -> nn.Module:
    """Build 784-300-100-10, the network of the NDQSG paper (arXiv:1904.01197)."""
    return nn.Sequential(
        Normalize(),
        nn.Flatten(),
        nn.Linear(784, 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


class Logistic(nn.Linear):
    """Logistic regression: 784 weights for each digit, and images scaled to length one.

    So the gradient of each loss is 1/2-Lipschitz, and the loss with l2 regularisation has a
    condition of 1 / (2 l2). The weights start as zeros.
    """

    def __init__(self) -> None:
        super().__init__(784, 10, bias=False)
        nn.init.zeros_(self.weight)

    def forward(self, images: Tensor) -> Tensor:
        """The log odds of each digit, in the type of the weights."""
        return super().forward(F.normalize(images.flatten(1).to(self.weight.dtype)))


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 for each example whose digit gets the largest output, 0 for the others."""
    return (outputs.argmax(1) == targets).double()
