"""The affine map of GradiVeQ's compress phase; see `__init__.py` for the paper.

    project:  y_m = U^T (x_m - mu_m)   for each slice m of K values      (paper's sec. 3.2)
    expand:   x_m = U y_m + mu_m

`U` has d orthonormal rows here, so `basis` is U^T. The image is the vector y of all coefficients,
the largest of every slice first, and the tail that fills no slice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.adaptive import AffineCodec
from gradwire.codec import SummableCodec
from gradwire.codecs.gradiveq.slicing import Slicing
from gradwire.key import Key

_MAX_SEEN = 64
"""Slices that the energy of what is owed is estimated from."""


@dataclass(frozen=True, eq=False)
class Projection(AffineCodec):
    """Slices by their coefficients in `basis` (d, K), after their `mean` (slices, K) is taken off.

    As a payload, to measure it by, the image is that of `inner`. What `inner` loses of an image is
    not owed: it is unbiased, or rounds.
    """

    slicing: Slicing
    basis: Tensor
    mean: Tensor
    inner: SummableCodec
    is_first: bool = True

    unbiased = False
    grain = None

    @property
    def through(self) -> SummableCodec:
        """The inner codec."""
        return self.inner

    @property
    def image_numel(self) -> int:
        """Coefficients and tail."""
        count, size = self.slicing.count, self.slicing.size
        return self.slicing.numel - count * (size - self.basis.shape[0])

    def project(self, x: Tensor, image: Tensor) -> tuple[float, float]:
        """The coefficients and the tail, and the energies of what is sent and lost of slices."""
        slices, tail = self.slicing.cut(x)
        coefficients, image_tail = self._parts_of(image)
        image_tail.copy_(tail)
        energies = torch.empty(len(slices), 2, dtype=torch.float64)
        kernels.for_device(x.device).project(slices, self.mean, self.basis, coefficients, energies)
        all_of_it, sent = (math.fsum(column) for column in energies.T.tolist())
        return sent, max(all_of_it - sent, 0.0)

    def expand(self, image: Tensor, out: Tensor) -> None:
        """Write what `image` says to `out`."""
        ordered = self.slicing.ordered(out)
        slices, tail = self.slicing.split(ordered)
        coefficients, image_tail = self._parts_of(image)
        kernels.for_device(image.device).combine(self.basis, coefficients, self.mean, slices)
        tail.copy_(image_tail)
        self.slicing.restore(ordered, out)

    def subtract_image(self, minus_image: Tensor, out: Tensor) -> None:
        """Take off what an image, of which the negative is given, expands to."""
        ordered = self.slicing.ordered(out)
        slices, tail = self.slicing.split(ordered)
        minus_coefficients, minus_tail = self._parts_of(minus_image)
        slices.sub_(self.mean)
        kernels.for_device(out.device).combine(self.basis, minus_coefficients, slices, slices)
        tail.add_(minus_tail)
        self.slicing.restore(ordered, out)

    def lost(self, x: Tensor, owed: Tensor) -> float:
        """From some of the slices, evenly spread: all would take a third product."""
        slices, _ = self.slicing.cut(x)
        before, _ = self.slicing.cut(owed)
        count = len(slices)
        num_seen = min(count, _MAX_SEEN)
        seen = torch.arange(num_seen) * count // max(num_seen, 1)
        _, energies = self._coefficients(slices[seen] - self.mean[seen] + before[seen])
        all_of_it, said = (math.fsum(column) for column in energies.T.tolist())
        return max(all_of_it - said, 0.0) * count / max(num_seen, 1)

    def owe(self, x: Tensor, owed: Tensor) -> None:
        """Add x - mu; of the tail nothing is lost."""
        owed.add_(x)
        ordered = self.slicing.ordered(owed)
        slices, tail = self.slicing.split(ordered)
        slices.sub_(self.mean)
        tail.zero_()
        self.slicing.restore(ordered, owed)

    def settle(self, owed: Tensor) -> None:
        """(I - U U^T) of the sum is the sum of what was lost."""
        ordered = self.slicing.ordered(owed)
        slices, tail = self.slicing.split(ordered)
        said, _ = self._coefficients(slices)
        kernels.for_device(owed.device).combine(self.basis, said.neg_(), slices, slices)
        tail.zero_()
        self.slicing.restore(ordered, owed)

    def _coefficients(self, centred: Tensor) -> tuple[Tensor, Tensor]:
        """Those of slices whose mean is off, and the energies of both."""
        coefficients = torch.empty(len(self.basis), len(centred))
        energies = torch.empty(len(centred), 2, dtype=torch.float64)
        kernels.for_device(centred.device).project(
            centred, torch.zeros_like(centred), self.basis, coefficients, energies
        )
        return coefficients, energies

    def _parts_of(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients (d, slices) and the tail."""
        rank, count = self.basis.shape[0], self.slicing.count
        return image[: rank * count].view(rank, count), image[rank * count :]

    def max_nbytes(self, numel: int) -> int:
        """Those of the image; the vector is as long as the parameter."""
        return self.inner.max_nbytes(self.image_numel)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        image = torch.empty(self.image_numel)
        self.project(x, image)
        return self.inner.encode_into(image, out, key)

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        values = torch.empty_like(out)
        self.expand(self.inner.decode(payload, self.image_numel, key), values)
        if weight != 1:
            values.mul_(weight)
        if accumulate:
            out.add_(values)
        else:
            out.copy_(values)
