r"""DQSG: quantization with a dither that both sides know, and that the receiver takes away.

With a dither u uniform on (-D/2, D/2], shared by sender and receiver, the integer

    q_i = round((x_i + u_i) / D)                                                             (1)

is sent, and the receiver restores

    y_i = D q_i - u_i                                                                        (2)

By Schuchman's theorem the error y - x is uniform on (-D/2, D/2] and independent of x, so

    E y = x,    E |y - x|^2 = n D^2 / 12                                                     (3)

exactly. QSGD sends the same integers but cannot subtract: its error D^2 p (1 - p) is D^2 / 6 on
average over fractions p. Half the error, at no bit more: dithers are rebuilt from the `Key`.

Two ways to choose the step D of a block: max |x| / `levels`, with codes of a fixed width; or `step`
times the root mean square, with entropy coded codes, which gives less error for each real bit than
any other method known here. `bits_per_value` finds that step for a budget.

A. Abdi, F. Fekri, "Nested Dithered Quantization for Communication Reduction in Distributed
Training", arXiv:1904.01197, section 3; the theory as in the supplement of their "Quantized
Compressive Sampling of Stochastic Gradients", AAAI 2020, section 1.

    paper                  here
    kappa = max |g|        scale of a block
    M                      `levels`
    Delta                  step of a block: kappa / M, or `step` times the block's rms
    u                      (U - 1/2) Delta with U from `Key`, 16 bits
    Q(x + u) / Delta       code, less the code of zero

Differences from the paper: scales belong to blocks, not layers. Dithers come from a counter, not
from a generator whose state both sides must keep. They have 16 bits, so errors lie on a grid of
2^-16 steps, with mean zero. `step` and `bits_per_value` are not in the paper. A block of zeros
decodes to zeros, as does one whose values are all below 2^-100; a zero among other values does
not, by nature. Values beyond 2^127 count as 2^127. A block with an inf or a NaN decodes to NaN.
Derivations and measured tables:
docs/codecs/dithered.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codecs import rate
from gradwire.codecs.coding import DAMAGED, Coding, check_wire
from gradwire.codecs.settings import SpelledCodec
from gradwire.kernels.exact import divide
from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.layout import MIN_SCALE, MOST, TILE, check_block
from gradwire.key import Key


@dataclass(frozen=True)
class DQSG(SpelledCodec):
    """Quantize with subtractive dither. Give one of the first three settings.

    levels: levels on each side of zero, up to the block's largest value (1 to 127; default 3).
    step: the step in units of the block's root mean square (1/64 to 8), entropy coded.
    bits_per_value: the real bits, scales included, that `step` is to be found for (1 to 7).
    block: values that share a step; 0 is 512 with `levels`, 4096 else.
    wire: "packed", "huffman", "elias" or "zstd"; "auto" is packed with `levels`, huffman else.

    >>> import torch, gradwire as gw
    >>> codec = gw.DQSG(levels=3)
    >>> x = torch.tensor([1.0, -2.0, 0.0, 4.0])
    >>> codec.decode(codec.encode(x, gw.Key(seed=1)), 4, gw.Key(seed=1))
    tensor([ 1.0548, -1.9382, -0.0973,  4.0414])
    >>> gw.DQSG(bits_per_value=2.0)
    DQSG(levels=None, step=None, bits_per_value=2.0, block=4096, wire='huffman')
    """

    levels: int | None = None
    step: float | None = None
    bits_per_value: float | None = None
    block: int | None = 0
    wire: str = "auto"

    unbiased = True
    name = "dqsg"

    def __post_init__(self) -> None:
        given = [k for k in ("levels", "step", "bits_per_value") if getattr(self, k) is not None]
        if len(given) > 1:
            raise ValueError(
                f"`{given[0]}` and `{given[1]}` both choose the step; give one of them."
            )
        if not given:
            object.__setattr__(self, "levels", 3)
        if self.block == 0:
            object.__setattr__(self, "block", self._default_block)
        if self.wire == "auto":
            object.__setattr__(self, "wire", self._default_wire)
        self._check_resolution()
        check_block(self.block)

    def _check_resolution(self) -> None:
        if self.levels is not None:
            check_levels(self.levels)
        if self.step is not None and not is_number(self.step, 1 / 64, 8):
            raise ValueError(
                f"`step` must be from 1/64 to 8 times the block's rms, got {self.step!r}; for "
                "finer steps use `levels=127`."
            )
        check_wire(self.wire)
        if self.bits_per_value is not None:
            if not is_number(self.bits_per_value, 1, 7):
                raise ValueError(
                    f"`bits_per_value` must be from 1 to 7, got {self.bits_per_value!r}; for 8 "
                    "bits use `levels=127`."
                )
            if self.wire != "huffman":
                raise ValueError(
                    f'`bits_per_value` counts bytes of the "huffman" wire, got {self.wire!r}; '
                    "leave `wire` out, or give `step` or `levels` instead."
                )

    @property
    def _default_block(self) -> int:
        return 512 if self.levels is not None else 4096

    @property
    def _default_wire(self) -> str:
        return "packed" if self.levels is not None else "huffman"

    def settings(self) -> dict[str, Any]:
        """As for any codec, but the resolution is always said."""
        defaults = {"block": self._default_block, "wire": self._default_wire}
        return {
            name: value
            for name, value in super().settings().items()
            if value is not None and value != defaults.get(name)
        } | ({"block": None} if self.block is None else {})

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.wire == "packed"

    @property
    def grain(self) -> int | None:
        """Blocks and tiles stay whole, and so do the segments that a step is found for."""
        if self.block is None:
            return None
        return rate.segment_of(self.block) if self.bits_per_value else max(self.block, TILE)

    def max_nbytes(self, numel: int) -> int:
        return self._coding.max_nbytes(numel)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        if self.levels is None:
            return self._encode_steps(x, out, key, offset)
        return self._encode_levels(x, None, out, key, offset)

    def encode_owing_into(
        self, x: Tensor, debt: Debt, out: Tensor, key: Key, offset: int = 0
    ) -> int:
        if self.levels is None:
            return super().encode_owing_into(x, debt, out, key, offset)
        return self._encode_levels(x, debt, out, key, offset)

    def _encode_levels(
        self, x: Tensor, debt: Debt | None, out: Tensor, key: Key, offset: int
    ) -> int:
        levels = self._coding.levels

        def quantize(scales: Tensor, codes: Tensor, width: int) -> None:  # eq. (1)
            kernels.for_device(x.device).quantize(
                x, scales, codes, debt, levels=levels, width=width, block=self.block,
                norm="max", key=key, offset=offset, dithered=True,
            )  # fmt: skip

        return self._coding.encode(x.numel(), out, quantize)

    def _encode_steps(self, x: Tensor, out: Tensor, key: Key, offset: int) -> int:
        kernel, block = kernels.for_device(x.device), self.block
        ratios, segment = self._ratios(x)
        if self.wire == "huffman":
            return kernel.encode_dithered(  # eq. (1)
                x, ratios, out, segment=segment, block=block, key=key, offset=offset
            )

        def quantize(steps: Tensor, codes: Tensor, width: int) -> None:  # eq. (1)
            kernel.block_steps(x, ratios, steps, segment=segment, block=block)
            kernel.quantize_dithered(
                x, steps, codes, zero=MOST, block=block, key=key, offset=offset
            )

        return self._coding.encode(x.numel(), out, quantize)

    def _ratios(self, x: Tensor) -> tuple[Tensor, int | None]:
        """Steps in units of the root mean square, and how many values share one."""
        if self.bits_per_value is not None:
            return rate.find_ratios(x, self.block, self.bits_per_value)
        assert self.step is not None
        return torch.full((1,), self.step, dtype=torch.float32, device=x.device), None

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        kernel, coding = kernels.for_device(out.device), self._coding
        if self.levels is None and self.wire == "huffman":
            coding.check_scales(payload, out.numel())
            if not kernel.decode_dithered(  # eq. (2)
                payload, out, block=self.block, key=key, offset=offset, weight=weight,
                accumulate=accumulate,
            ):  # fmt: skip
                raise ValueError(DAMAGED)
            return
        scales, codes = coding.decode(payload, out.numel())
        steps = scales if self.levels is None else steps_of(scales, self.levels)
        kernel.dequantize_dithered(  # eq. (2)
            steps, codes, out, zero=coding.levels, width=coding.width, block=self.block, key=key,
            offset=offset, weight=weight, accumulate=accumulate,
        )  # fmt: skip

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """Scales or steps, and codes."""
        return self._coding.anatomy(payload, numel)

    @property
    def _coding(self) -> Coding:
        levels = self.levels or MOST
        return Coding(self.wire, (2 * levels).bit_length(), levels, self.block)


def check_levels(levels: int) -> None:
    """Refuse what is no number of levels."""
    if not isinstance(levels, int) or not 1 <= levels <= 127:
        raise ValueError(
            f"`levels` must be an integer from 1 to 127, got {levels!r}; `levels=1` is the "
            "coarsest, and `bits_per_value` goes below its 2 bits."
        )


def steps_of(scales: Tensor, levels: int) -> Tensor:
    """The step of each block from its largest value; 0 for a block of zeros."""
    return torch.where(scales <= MIN_SCALE, 0.0, divide(scales, levels))


def is_number(value: Any, least: float, most: float) -> bool:
    """Is this a number from `least` to `most`?"""
    return isinstance(value, int | float) and least <= value <= most
