"""Subtractive dither and prefix codes at once, for DQSG: nothing but payloads in memory."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.key import Key


class Entropy(Protocol):
    """Payloads of values in steps: the steps (float32), then a stream of Huffman's codes."""

    def count_ratios(
        self,
        x: Tensor,
        counts: Tensor,
        limits: Tensor,
        *,
        segment: int | None,
        block: int | None,
    ) -> None:
        """Count how large some values are beside the root mean square of their block.

        `formats/sample.py` says which ones, and in which bins. `counts` (int32) is of segments,
        tiles and bins, all of it zero to begin with, and so is `limits` (int32), of segments and
        tiles: the least step that the first block of each tile may have, from `LEAST` to `MOST`
        parts of an octave. Values that are not finite are in the first bin.
        """

    def encode_dithered(
        self,
        x: Tensor,
        ratios: Tensor,
        out: Tensor,
        *,
        segment: int | None,
        block: int | None,
        key: Key,
        offset: int = 0,
    ) -> int:
        """What `block_steps`, `quantize_dithered` and `huffman_encode` make of `x`; its size.

        The code of zero is 127.
        """

    def decode_dithered(
        self,
        payload: Tensor,
        out: Tensor,
        *,
        block: int | None,
        key: Key,
        offset: int = 0,
        weight: float = 1.0,
        accumulate: bool = False,
    ) -> bool:
        """And back, with `huffman_decode` and `dequantize_dithered`; False: it is not whole.

        What `out` then holds is undefined.
        """
