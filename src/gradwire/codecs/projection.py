"""The linear map of GradiVeQ's compress phase, as a codec; see `gradiveq.py` for the paper.

    encode:  y_m = U^T (x_m - mu_m)   for each slice m of K values      (paper's sec. 3.2)
    decode:  x_m = U y_m + mu_m

`U` has d orthonormal rows here, so `basis` is U^T. The vector y of all coefficients, the largest
of every slice first, and the tail that fills no slice go to `inner`, a codec whose terms can be
summed. The map commutes with the mean, so the sum of the terms decodes to the projected mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Key, SummableCodec
from gradwire.codecs.slicing import Slicing


@dataclass(frozen=True, eq=False)
class Projection(SummableCodec):
    """Slices by their coefficients in `basis` (d, K), after their `mean` (slices, K) is taken off.

    A term ends with two more elements: the energy of the coefficients and the energy lost, in
    units of `unit`, from which the sum tells their means over the workers (`remark`).
    """

    slicing: Slicing
    basis: Tensor
    mean: Tensor
    unit: float
    inner: SummableCodec

    unbiased = False
    name = "projection"
    grain = None

    @property
    def sum_dtype(self) -> torch.dtype:
        """The type of the inner terms."""
        return self.inner.sum_dtype

    @property
    def statistics_op(self) -> str:  # type: ignore[override]
        """As the inner codec wants it."""
        return self.inner.statistics_op

    def project(self, x: Tensor) -> tuple[Tensor, tuple[float, float]]:
        """The coefficients and the tail, and the energies of what is sent and lost."""
        slices, tail = self.slicing.cut(x)
        y = torch.empty(self._numel())
        coefficients, y_tail = self._parts_of(y)
        y_tail.copy_(tail)
        rows, energy = max(1, _CACHED // self.slicing.size), 0.0
        for at in range(0, len(slices), rows):
            centred = slices[at : at + rows] - self.mean[at : at + rows]
            energy += float(torch.linalg.vector_norm(centred)) ** 2
            coefficients[:, at : at + rows] = self.basis @ centred.T
        sent = float(torch.linalg.vector_norm(coefficients)) ** 2
        return y, (sent, max(energy - sent, 0.0))

    def expand(self, y: Tensor, out: Tensor) -> None:
        """Write what `y` says to `out`, the same bits on every machine."""
        ordered = self.slicing.ordered(out)
        slices, tail = self.slicing.split(ordered)
        coefficients, y_tail = self._parts_of(y)
        kernels.select(y.device).combine(self.basis, coefficients, self.mean, slices)
        tail.copy_(y_tail)
        self.slicing.restore(ordered, out)

    def _parts_of(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients (d, slices) and the tail."""
        rank, count = self.basis.shape[0], self.slicing.count
        return y[: rank * count].view(rank, count), y[rank * count :]

    def _numel(self) -> int:
        """Coefficients and tail."""
        count, size = self.slicing.count, self.slicing.size
        return self.slicing.numel - count * (size - self.basis.shape[0])

    def max_nbytes(self, numel: int) -> int:
        """Those of the coefficients and the tail; the vector is as long as the parameter."""
        return self.inner.max_nbytes(self._numel())

    def encode_into(
        self, x: Tensor, out: Tensor, key: Key, offset: int = 0, *, world: int = 1
    ) -> int:
        """Project, and encode the coefficients."""
        return self.inner.encode_into(self.project(x)[0], out, key, world=world)

    def decode_into(
        self,
        payload: Tensor,
        out: Tensor,
        key: Key,
        offset: int = 0,
        *,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> None:
        """Decode the coefficients, and expand."""
        values = torch.empty_like(out)
        self.expand(self.inner.decode(payload, self._numel(), key), values)
        if accumulate:
            out.add_(values, alpha=weight)
        else:
            torch.mul(values, weight, out=out)

    def term_nbytes(self, numel: int, world: int) -> int:
        """The inner term and two elements more."""
        return self.inner.term_nbytes(self._numel(), world) + 2 * self.sum_dtype.itemsize

    def statistics(self, x: Tensor) -> Tensor:
        """Those of the coefficients, if the inner codec has any."""
        if type(self.inner).statistics is SummableCodec.statistics:
            return super().statistics(x)
        return self.inner.statistics(self.project(x)[0])

    def encode_term(
        self, x: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Project, and encode the coefficients."""
        y, energies = self.project(x)
        term, last = self._split(out)
        self.inner.encode_term(y, term, key, 0, world=world, shared=shared)
        shares = torch.tensor(energies, dtype=torch.float64).div_(self.unit)
        shares = shares.nan_to_num_(0.0).clamp_max_(_MOST).mul_(self._share(world))
        last.copy_(shares if self.sum_dtype.is_floating_point else shares.round_())

    def decode_sum(
        self, total: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Expand the mean of the coefficients."""
        y = torch.empty(self._numel())
        term, _ = self._split(total)
        self.inner.decode_sum(term, y, key, 0, world=world, shared=shared)
        self.expand(y, out)

    def subtract_term(
        self, term: Tensor, out: Tensor, key: Key, offset: int, *, world: int, shared: Tensor
    ) -> None:
        """Take off what the own coefficients expand to; nobody else needs to get the same."""
        minus_y = torch.zeros(self._numel())
        own, _ = self._split(term)
        self.inner.subtract_term(own, minus_y, key, 0, world=world, shared=shared)
        ordered = self.slicing.ordered(out)
        slices, tail = self.slicing.split(ordered)
        minus_coefficients, minus_tail = self._parts_of(minus_y)
        slices.sub_(self.mean).addmm_(minus_coefficients.T, self.basis)
        tail.add_(minus_tail)
        self.slicing.restore(ordered, out)

    def remark(self, total: Tensor, world: int) -> tuple[float, ...]:
        """The energies sent and lost, the means over the workers."""
        _, last = self._split(total)
        return tuple(float(each) / (world * self._share(world)) for each in last)

    def _share(self, world: int) -> float:
        """What an energy of one adds to its element; no sum can overflow."""
        if self.sum_dtype.is_floating_point:
            return 1 / world
        return torch.iinfo(self.sum_dtype).max // (world * _MOST)

    def _split(self, term: Tensor) -> tuple[Tensor, Tensor]:
        """The inner term, and the last two elements."""
        at = term.numel() - 2 * self.sum_dtype.itemsize
        return term[:at], term[at:].view(self.sum_dtype)


_CACHED = 1 << 18
"""So many values are centred at a time, and stay in the cache for the product."""

_MOST = 4096
"""Energies above so many units are not told apart."""
