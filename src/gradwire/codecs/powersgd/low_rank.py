"""A matrix by two thin factors: one step of a power iteration; see `__init__.py` for the paper.

    P = M Q,  P^ = orthonormal columns of P      (paper's alg. 1, lines 3 to 5)
    Q' = M^T P^                                  (lines 6 and 7)
    M' = P^ Q'^T                                 (line 10)

Factors are stored by columns: `p` is (r, n) and `q` is (r, m).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.adaptive import Layout
from gradwire.codec import Codec, SummableCodec
from gradwire.codecs.settings import check_size
from gradwire.key import Hop, Key

_CPU = torch.device("cpu")


def matrix_shape(layout: Layout) -> tuple[int, int]:
    """Rows and columns of a parameter: its slowest dimension in memory, and all the others.

    A convolution is `out` rows of in * kh * kw values, however these lie; a matrix that is stored
    by columns is its transpose, which has the same rank.

    >>> matrix_shape(Layout.of(torch.empty(64, 32, 3, 3).to(memory_format=torch.channels_last)))
    (64, 288)
    """
    pairs = zip(layout.stride, layout.shape, strict=True)
    sizes = [size for _, size in sorted(pairs, reverse=True) if size != 1]
    rows = sizes[0] if sizes else 1
    return rows, math.prod(sizes[1:])


@dataclass(frozen=True, eq=False)
class LowRank(Codec):
    """A matrix of `shape`, approximated from the factor `start` (r, m), or from a random one.

    Both factors go through `inner`, one after the other, as if they were one vector. As a payload,
    to measure it by, they are those of this one worker.
    """

    shape: tuple[int, int]
    rank: int
    start: Tensor | None
    inner: SummableCodec

    unbiased = False
    collective = "low_rank"
    grain = None

    @property
    def sizes(self) -> tuple[int, int]:
        """Values of both factors."""
        return self.rank * self.shape[0], self.rank * self.shape[1]

    @property
    def second_at(self) -> int:
        """Where the second factor begins: its random bits are not those of the first."""
        grain = self.inner.grain or 1
        return -(-self.sizes[0] // grain) * grain

    def begin(self, key: Key, device: torch.device = _CPU) -> Tensor:
        """The factor that the iteration starts from: orthonormal rows of (r, m).

        On a GPU the host does not know whether `start` is one: zeros stand for none.
        """
        start, kernel = self.start, kernels.for_device(device)
        if start is None:
            kernel.orthonormalize(drawn := self._drawn(key, device))
            return drawn
        if device.type == "cpu":
            return start
        is_there, drawn = start.any(), self._drawn(key, device)
        kernel.orthonormalize(drawn, (~is_there).to(torch.int32).view(1))
        return torch.where(is_there, start, drawn)

    def _drawn(self, key: Key, device: torch.device) -> Tensor:
        """A factor at random, the same on every rank."""
        numel = self.sizes[1]
        counter = torch.arange(-(-numel // 4), device=device)
        kernel = kernels.for_device(device)
        words = kernel.philox(counter, key.of(rank=0, hop=Hop.START)).reshape(-1)[:numel]
        return ((words - 2**31).double() / 2**31).float().view(self.rank, -1)

    def room(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Memory for both factors."""
        rows, columns = self.shape
        return (
            torch.empty(self.rank, rows, device=device),
            torch.empty(self.rank, columns, device=device),
        )

    def matrix(self, flat: Tensor) -> Tensor:
        """A flat vector as a matrix."""
        return flat.view(self.shape)

    def first(self, x: Tensor, extra: Tensor | None, q: Tensor, out: Tensor) -> None:
        """Write the first factor of the matrix x + extra to `out`."""
        kernels.for_device(x.device).row_products(x, extra, q, out)

    def second(self, x: Tensor, extra: Tensor | None, p: Tensor, out: Tensor) -> None:
        """Write the second factor, that belongs to an orthonormal first one."""
        kernels.for_device(x.device).column_products(x, extra, p, out)

    def expand(self, p: Tensor, q: Tensor, out: Tensor, *, accumulate: bool = False) -> None:
        """Write, or add, what both factors say."""
        kernels.for_device(out.device).add_outer(p, q, out, accumulate=accumulate)

    def next_start(self, before: Tensor, q: Tensor) -> Tensor:
        """What the next step starts from: `q`, orthonormal, and `before` where nothing is left."""
        after = q.clone()
        kernels.for_device(q.device).orthonormalize(after)
        return torch.where(after.any(1, keepdim=True), after, before)

    def is_finite(self, q: Tensor) -> bool | Tensor:
        """Is all that an orthonormal first factor and this second one say? See `all_finite`."""
        lowest, highest = torch.aminmax(q)
        is_small = torch.maximum(-lowest, highest) < torch.finfo(torch.float32).max / (
            2 * self.rank
        )
        return bool(is_small) if q.device.type == "cpu" else is_small

    def max_nbytes(self, numel: int) -> int:
        return sum(self.inner.max_nbytes(size) for size in self.sizes)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        matrix = self.matrix(x.float())
        p, q = self.room(x.device)
        self.first(matrix, None, self.begin(key, x.device), p)
        kernels.for_device(x.device).orthonormalize(p)
        self.second(matrix, None, p, q)
        size = self.inner.encode_into(p.view(-1), out, key)
        return size + self.inner.encode_into(q.view(-1), out[size:], key, self.second_at)

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        check_size(payload, self.max_nbytes(out.numel()))
        cut = self.inner.max_nbytes(self.sizes[0])
        p, q = self.room(out.device)
        self.inner.decode_into(payload[:cut], p.view(-1), key)
        self.inner.decode_into(payload[cut:], q.view(-1), key, self.second_at, weight=weight)
        self.expand(p, q, self.matrix(out), accumulate=accumulate)
