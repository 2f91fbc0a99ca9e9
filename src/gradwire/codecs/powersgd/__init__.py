"""PowerSGD [1]: gradients of matrices by two thin factors, from a power iteration that goes on.

Each step does one round of the iteration, from where the last one has ended:

    P  = mean of the M_i Q              each worker i, r values a row             (alg. 1, l. 3, 4)
    P^ = orthonormal columns of P       every worker, the same bits               (l. 5)
    Q' = mean of the M_i^T P^           r values a column                         (l. 6, 7)
    M' = P^ Q'^T                        instead of the mean of the M_i            (l. 10)

so r (n + m) values are sent of n m. M_i is the gradient and what worker i still owes of it. It owes
M_i - P^ Q_i^T afterwards, where Q_i = M_i^T P^ is what it has sent itself. The next step starts
from Q'. Over steps whose gradients resemble each other, M' comes to be the best approximation of
rank r.

[1] Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019, arXiv:1905.13727.

Legend: r = `rank`; n, m = rows and columns; Q = `Basis.q`, transposed.

Differences from the paper:

- What is owed is the part of the worker's own matrix that its own factors did not say. The paper
  takes off the mean of all workers, M_i - M', so each also owes by how much it differs from the
  others. Both add up to the same over the workers.
- The columns of Q are made orthonormal as well. That changes no M', which depends on what they
  span alone; but P then is of the size of M and not of its square, which float16 may not hold.
- A column that the others span (of a matrix of lower rank, or of zeros) becomes zero instead of
  noise, and the next step starts with the column that was there before.
- A step that is not finite gives NaN for the parameter, on every rank, and is forgotten.
- A parameter for which r (n + m) >= n m travels raw, as do vectors.
- The factors may go through another codec (`inner`) whose codes can be added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gradwire.adaptive import AdaptiveCodec, Layout, State
from gradwire.codec import Codec, Seen, SummableCodec
from gradwire.codecs.cast import Floats
from gradwire.codecs.inner import inner_codec, spelled_inner
from gradwire.codecs.powersgd.low_rank import LowRank, matrix_shape
from gradwire.codecs.settings import SpelledCodec

MAX_RANK = 256


@dataclass(frozen=True)
class Basis(State):
    """Where the iteration of a parameter stands: at `q` (r, m), unless it has yet to begin.

    is_raw: the parameter has too few rows or columns.

    On a GPU `q` may be zeros, if no step was finite so far: the host does not ask.
    """

    q: Tensor | None = None
    is_raw: bool = False

    def save(self) -> dict[str, Any]:
        q = None if self.q is None else self.q.cpu()
        return {"q": q if q is not None and q.any() else None, "is_raw": self.is_raw}


@dataclass(frozen=True)
class PowerSGD(AdaptiveCodec[Basis], SpelledCodec):
    """Matrices by factors of `rank` columns.

    inner: the codec of the factors, or its spec with ";" for ",": a `SummableCodec`.

    On its own a vector is no matrix, so a payload is the vector itself.

    >>> import gradwire as gw
    >>> gw.parse("powersgd:rank=2,inner=fp16")
    PowerSGD(rank=2, inner='fp16')
    """

    rank: int = 4
    inner: SummableCodec | str | None = None

    stands_alone = False
    host_only = ""
    unbiased = False
    collective = "code_reduce"
    name = "powersgd"
    grain = None
    state_type: ClassVar[type[State]] = Basis

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or not 1 <= self.rank <= MAX_RANK:
            raise ValueError(f"`rank` must be an integer from 1 to {MAX_RANK}, got {self.rank!r}.")
        object.__setattr__(self, "inner", spelled_inner(self.inner))

    def start(self) -> Basis:
        """Before the first step."""
        return Basis()

    def codec_for(self, state: Basis, layout: Layout) -> Codec:
        """Two factors if they are shorter than the parameter; raw float32 else."""
        shape = matrix_shape(layout)
        if not self._pays(shape):
            return Floats()
        return LowRank(shape, self.rank, state.q, inner_codec(self.inner))

    def share_due(self, state: Basis) -> float:
        """All of the residual; what travels raw has none."""
        return 0.0 if state.is_raw else 1.0

    def learn(
        self, state: Basis, layout: Layout, mean: Tensor, seen: Seen, *, owing: bool
    ) -> Basis:
        """Go on from where the step has ended; one that was not finite shows nothing."""
        if not self._pays(matrix_shape(layout)):
            return Basis(is_raw=True)
        return Basis(*seen) if seen else state

    def describe(self, state: Basis) -> str:
        """Whether it compresses."""
        if state.is_raw:
            return f"raw, factors of rank {self.rank} would be no shorter"
        return f"compress, rank {self.rank}"

    def examples(self, numel: int) -> tuple[Codec, ...]:
        """A vector as the squarest matrix that it can be, and raw float32."""
        divisors = (rows for rows in range(math.isqrt(numel), 0, -1) if numel % rows == 0)
        rows = next(divisors, 1)
        shape = rows, numel // rows
        if not self._pays(shape):
            return (Floats(),)
        return LowRank(shape, self.rank, None, inner_codec(self.inner)), Floats()

    def _pays(self, shape: tuple[int, int]) -> bool:
        """Are the factors shorter than the matrix?"""
        rows, columns = shape
        return self.rank * (rows + columns) < rows * columns
