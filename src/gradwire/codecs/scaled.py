"""What adders of integers have in common: codes are levels of scales that all workers share."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from gradwire.codec import Adder
from gradwire.key import Key


class ScaledAdder(Adder):
    """Codes of `world` workers, by the `scales` of their blocks. A payload is a world of one."""

    def __init__(self, world: int, scales: Tensor) -> None:
        self.world, self.scales = world, scales

    @abstractmethod
    def quantize(
        self, x: Tensor, codes: Tensor, key: Key, offset: int, *, norm: str | None = None
    ) -> None:
        """Write codes; if there is a `norm`, the scales are computed and written first."""

    @abstractmethod
    def dequantize(
        self, codes: Tensor, out: Tensor, key: Key, offset: int, *,
        total: bool, weight: float, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """Write or add what the total of all codes says, or what those of this worker say."""

    def encode(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        self.quantize(x, out, key, offset)

    def decode(self, total: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        self.dequantize(total, out, key, offset, total=True, weight=1 / self.world)

    def subtract(self, code: Tensor, out: Tensor, key: Key, offset: int = 0) -> None:
        self.dequantize(code, out, key, offset, total=False, weight=-1.0, accumulate=True)
