"""The largest coefficients of every block; the format is in `formats/spectra.py`.

Transforms are orthonormal. With B values x in a block, a power of two, and
F_k = sum_j x_j exp(-2 pi i j k / B):

    fft    c = sqrt(2 / B) (F_0 / sqrt(2), Re F_1, Im F_1, Re F_2, ..., F_{B/2} / sqrt(2))
    dct    c_k = s_k sum_j x_j cos(pi (2 j + 1) k / (2 B)), s_0 = 1 / sqrt(B), else sqrt(2 / B)
    time   c = x

What is left after the last whole block is cut into falling powers of two, each transformed alone.
All NaN are one NaN. `reference/transforms.py` says in which order values are added and multiplied.

Both kernels say whether what was received is whole. On a GPU that is a tensor of one bool, so that
nothing waits for it, and blocks that are damaged are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from gradwire.kernels.formats.spectra import Form, Kept


class Spectra(Protocol):
    """From values to what is kept of their coefficients in `domain`, and back."""

    def keep_spectra(
        self,
        x: Tensor,
        others: Sequence[Kept],
        kept: Kept,
        rest: Tensor | None,
        *,
        domain: str,
        form: Form,
    ) -> bool | Tensor:
        """Write what is kept of the mean of `x` (float32) and of the vectors of `others`.

        Coefficients are added in this order, `x` first, and their sum is multiplied by 1 / number.
        `rest`, which may be `x`, gets what is not kept of the mean, times the number of vectors.
        False if one of `others` is damaged; what is written is then undefined.
        """

    def add_spectra(
        self,
        kept: Sequence[Kept],
        out: Tensor,
        *,
        domain: str,
        form: Form,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> bool | Tensor:
        """Write, or add, `weight` times the sum of what these vectors say to `out` (float32).

        Coefficients are added in order, to 0, and turned back once. Blocks of scale 0 are NaN.
        False if one is damaged: a bitmap does not name as many as there are codes, or a scale is
        not one of finite values. What is written is then undefined.
        """
