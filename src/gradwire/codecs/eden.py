r"""EDEN: a random rotation makes every block Gaussian, and a few levels are then enough.

A block x of B values is rotated, y = R x. Whatever x was, the values of y are then nearly those of
a Gaussian with the variance |x|^2 / B, for which the best 2^b levels are known (Lloyd and Max). The
message is the place of the nearest level to each value, q, and one scale,

    x' = S R^-1 q,   q_i = argmin_c |sqrt(B) / |x| y_i - c|,   S = <y, y> / <y, q>           (1)

With this scale <x', x> = <x, x>, and the error is at right angles to x. Over uniform rotations it
has no preferred direction there, so E x' = x. With D for the distortion of the levels,

    E |x' - x|^2 / |x|^2 = |q|^2 |y|^2 / <y, q>^2 - 1  ->  D / (1 - D),                       (2)

0.571, 0.133, 0.0358 and 0.0096 for 1 to 4 bits: for every x, not for Gaussian ones alone.

All workers rotate alike, so their mean is that of the rotated vectors, rotated back once:

    mean_r x'_r = R^-1 mean_r S_r q_r                                                        (3)

S. Vargaftik, R. Ben-Basat, A. Portnoy, G. Mendelson, Y. Ben-Itzhak, M. Mitzenmacher, "DRIVE:
One-bit Distributed Mean Estimation", NeurIPS 2021, arXiv:2105.08339, and "EDEN:
Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning", ICML 2022,
arXiv:2108.08842: theorem 2.1 and section 3.

    paper                     here
    d                         values in a block, `block`
    R_H, Hadamard and signs   two stages of it: `kernels/formats/rotation.py`
    Q, centroids              `LEVELS` there
    S                         the scale of a block

Differences from the paper: blocks are rotated and have a scale each, instead of a vector. One
Hadamard stage leaves vectors of few values far from Gaussian, and of two values and one bit the
smaller is always lost; so there are two stages. The workers' rotations are not independent but
the same, which costs nothing unless their vectors are nearly equal. Derivations and measured
tables: docs/codecs/eden.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Seen
from gradwire.codecs.coding import as_float
from gradwire.codecs.settings import SpelledCodec, check_size, sizes_up_to
from gradwire.kernels.formats.layout import num_blocks
from gradwire.kernels.formats.rotation import LEVELS, check_block, padded_numel
from gradwire.key import Key


@dataclass(frozen=True)
class EDEN(SpelledCodec):
    """Rotate every block at random and round it to the best levels of a Gaussian.

    bits: 1 to 4, one of them the sign; fewer are coarser.
    block: values that are rotated together and share a scale, a power of two from 512 to 4096.

    >>> import torch, gradwire as gw
    >>> codec, x = gw.EDEN(bits=2), torch.arange(100_000.0)
    >>> y = codec.decode(codec.encode(x, gw.Key(seed=1)), 100_000, gw.Key(seed=1))
    >>> round(float((y - x).square().sum() / x.square().sum()), 2)
    0.13
    """

    bits: int = 2
    block: int = 1024

    unbiased = True
    name = "eden"

    def __post_init__(self) -> None:
        bits = self.bits
        if not isinstance(bits, int) or isinstance(bits, bool) or bits not in LEVELS:
            raise ValueError(f"`bits` must be an integer from 1 to 4, got {bits!r}.")
        check_block(self.block)

    @property
    def grain(self) -> int | None:
        return self.block

    def max_nbytes(self, numel: int) -> int:
        """Scales, and codes of whole blocks: the last one is padded to a power of two."""
        return self._scale_nbytes(numel) + padded_numel(numel, self.block) // 8 * self.bits

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        size, split = self.max_nbytes(x.numel()), self._scale_nbytes(x.numel())
        scales, codes = out[:split].view(torch.float32), out[split:size]
        kernels.for_device(x.device).quantize_rotated(
            x, scales, codes, bits=self.bits, block=self.block, key=_shared(key), offset=offset
        )
        return size

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        self._add_up([payload], out, key, offset, weight=weight, accumulate=accumulate)

    def mean_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> Seen:
        """The mean is taken of what is still rotated: eq. (3)."""
        self._add_up(payloads, out, keys[0], offset, weight=1 / len(payloads), accumulate=False)
        return ()

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        return sizes_up_to("codes", payload, scales=self._scale_nbytes(numel))

    def _add_up(
        self, payloads: Sequence[Tensor], out: Tensor, key: Key, offset: int, *,
        weight: float, accumulate: bool,
    ) -> None:  # fmt: skip
        """Write or add `weight` times the sum of what `payloads` say."""
        for payload in payloads:
            check_size(payload, self.max_nbytes(out.numel()))
        pairs = [self._split(payload, out.numel()) for payload in payloads]
        kernels.for_device(out.device).dequantize_rotated(
            [scales for scales, _ in pairs], [codes for _, codes in pairs], out,
            bits=self.bits, block=self.block, key=_shared(key), offset=offset,
            weight=weight, accumulate=accumulate,
        )  # fmt: skip

    def _split(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Its scales and its codes."""
        size = self._scale_nbytes(numel)
        return as_float(payload[:size]), payload[size:]

    def _scale_nbytes(self, numel: int) -> int:
        return 4 * num_blocks(numel, self.block)


def _shared(key: Key) -> Key:
    """The key of the rotation: that of all workers is the same."""
    return key.of(rank=0)
