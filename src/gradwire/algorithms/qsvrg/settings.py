"""The numbers of QSVRG, and the quantizer of the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec
from gradwire.codecs.qsgd import QSGD
from gradwire.reduction.streams import check_seed

MOST_LEVELS = 127
BLOCK = 8192
"""Values with a norm of their own where all together would need more levels than a code has."""


@dataclass(frozen=True)
class QSVRGSettings:
    """What all ranks must agree on; `QSVRG` says what each of them is."""

    num_examples: int
    lr: float
    inner_steps: int
    batch: int
    l2: float
    seed: int

    def __post_init__(self) -> None:
        for name in ("num_examples", "inner_steps", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1, got {value!r}.")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"`lr` must be positive and finite, got {self.lr!r}.")
        if not 0 <= self.l2 < math.inf:
            raise ValueError(f"`l2` must be at least 0 and finite, got {self.l2!r}.")
        check_seed(self.seed)


def check_codec(codec: Codec) -> None:
    """Refuse one that learns."""
    if isinstance(codec, AdaptiveCodec):
        raise ValueError(
            f"{codec} learns from gradients that change little from step to step, and directions "
            "of QSVRG shrink; use a codec without memory, such as `qsgd` or `dqsg`."
        )


def paper_codec(numel: int) -> QSGD:
    """Q of the paper: sqrt(n) levels of the l2 norm, entropy coded.

    A code has at most 127 levels, so longer vectors are cut into blocks with a norm each.

    >>> paper_codec(7840), paper_codec(1 << 20).num_levels
    (QSGD(bits=8, levels=89, norm='l2', block=None, wire='zstd'), 91)
    """
    block = None if numel <= MOST_LEVELS * MOST_LEVELS else BLOCK
    levels = math.isqrt((block or max(numel, 1)) - 1) + 1
    return QSGD(levels=levels, norm="l2", block=block, wire="zstd")
