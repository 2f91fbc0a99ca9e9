"""How the codes of a quantizer travel: packed, Huffman or Elias coded, or compressed by zstd.

A payload is the scales of its blocks (float32) and their codes, integers in [0, 2 s] where s
stands for zero:

    packed   scales, codes in fields of a fixed width
    huffman  scales, a stream as in `kernels/protocol/huffman.py`
    zstd     scales, one zstd frame of the codes, packed without straddling bytes
    elias    mark, scales, Elias's recursive code, the first bit highest

The mark is one little-endian 64-bit word that says which of the two codes of the QSGD paper was
shorter: 0 for the dense one, 1 + nonzeros for the sparse one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor

from gradwire import kernels, scratch
from gradwire.codecs.settings import check_size, sizes_up_to
from gradwire.kernels.formats.huffman import CHUNK, HEAD
from gradwire.kernels.formats.layout import num_blocks, packed_nbytes

CODINGS = ("packed", "huffman", "elias", "zstd")
DAMAGED = "the Huffman code is damaged."
_MARK = 8
_local = threading.local()


def check_wire(wire: str) -> None:
    """Refuse what is none of them."""
    if wire not in CODINGS:
        names = " or ".join(", ".join(f'"{name}"' for name in CODINGS).rsplit(", ", 1))
        raise ValueError(f"`wire` must be {names}, got {wire!r}.")


@dataclass(frozen=True)
class Coding:
    """One of the four, for codes of `bits` bits of a quantizer with `levels` levels."""

    name: str
    bits: int
    levels: int
    block: int | None

    @property
    def width(self) -> int:
        """Bits of a code as the quantizer packs it, before it is coded any further.

        zstd models bytes, so codes must not straddle them; what padding adds, it takes away.
        """
        if self.name == "packed":
            return self.bits
        if self.name in ("elias", "huffman"):
            return 8
        return 2 if self.bits <= 2 else 4 if self.bits <= 4 else 8

    def max_nbytes(self, numel: int) -> int:
        """The size of a payload: exact for `packed`, a bound for the others."""
        plain = self._scale_nbytes(numel) + packed_nbytes(numel, self.width)
        if self.name == "packed":
            return plain
        if self.name == "huffman":
            return plain + HEAD * num_blocks(numel, CHUNK)
        if self.name == "zstd":
            return plain + plain // 128 + 1024  # above zstd's own bound
        return _MARK + plain + packed_nbytes(numel, 8)  # at most 15 bits: omega(128) and a sign

    def encode(
        self, numel: int, out: Tensor, quantize: Callable[[Tensor, Tensor, int], None]
    ) -> int:
        """Let `quantize(scales, codes, width)` write its results, and put them into `out`."""
        num_scales = self._scale_nbytes(numel)
        plain_nbytes = num_scales + packed_nbytes(numel, self.width)
        direct = self.name == "packed"
        plain = out[:plain_nbytes] if direct else _workspace(plain_nbytes, out.device)
        scales, codes = plain[:num_scales], plain[num_scales:]
        quantize(scales.view(torch.float32), codes, self.width)
        if direct:
            return plain_nbytes
        if self.name == "huffman":
            out[:num_scales] = scales
            kernel = kernels.for_device(out.device)
            return num_scales + kernel.huffman_encode(codes, out[num_scales:], zero=self.levels)
        if self.name == "zstd":
            return _write(out, scales, compress(codes))
        return _write(out, *self._elias(codes[:numel], scales))

    def decode(self, payload: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """The scales and the codes, packed at `width`; ValueError if they are not whole."""
        num_scales = self._scale_nbytes(numel)
        if self.name == "packed":
            check_size(payload, self.max_nbytes(numel))
            scales, codes = payload[:num_scales], payload[num_scales:]
        elif self.name in ("huffman", "zstd"):
            self.check_scales(payload, numel)
            scales, size = payload[:num_scales], packed_nbytes(numel, self.width)
            read = decompress if self.name == "zstd" else self._from_huffman
            codes = read(payload[num_scales:], size)
        else:
            scales, codes = self._from_elias(payload, numel, num_scales)
        return as_float(scales), codes

    def check_scales(self, payload: Tensor, numel: int) -> None:
        """Refuse a payload that cannot even hold the scales."""
        _check_least(payload, self._scale_nbytes(numel))

    def anatomy(self, payload: Tensor, numel: int, **before: int) -> dict[str, int]:
        """The bytes of each part, in their order, after what comes `before`."""
        mark = {"mark": _MARK} if self.name == "elias" else {}
        scales = {"scales": self._scale_nbytes(numel)}
        return sizes_up_to("codes", payload, **before, **mark, **scales)

    def _scale_nbytes(self, numel: int) -> int:
        return 4 * num_blocks(numel, self.block)

    def _from_huffman(self, stream: Tensor, size: int) -> Tensor:
        codes = _workspace(size, stream.device)
        kernel = kernels.for_device(stream.device)
        if not kernel.huffman_decode(stream, codes, zero=self.levels):
            raise ValueError(DAMAGED)
        return codes

    def _elias(self, codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mark, scales, and the shorter of the two codes."""
        kernel = kernels.for_device(codes.device)
        nonzeros, sparse, dense = kernel.elias_sizes(codes, levels=self.levels)
        use_sparse = sparse < dense
        mark = torch.tensor([1 + nonzeros if use_sparse else 0]).view(torch.uint8)
        stream = torch.empty(-(-min(sparse, dense) // 8), dtype=torch.uint8)
        kernel.elias_encode(codes, stream, levels=self.levels, sparse=use_sparse)
        return mark, scales, stream

    def _from_elias(self, payload: Tensor, numel: int, num_scales: int) -> tuple[Tensor, Tensor]:
        _check_least(payload, _MARK + num_scales)
        mark = int(payload[:_MARK].clone().view(torch.int64))
        scales, stream = payload[_MARK : _MARK + num_scales], payload[_MARK + num_scales :]
        shortest = 3 * (mark - 1) if mark else numel  # bits: a gap, a sign and a magnitude
        if not 0 <= mark <= numel + 1 or shortest > 8 * stream.numel():
            raise ValueError("the Elias code promises more values than it has bits.")
        codes = torch.empty(packed_nbytes(numel, 8), dtype=torch.uint8, device=payload.device)
        whole = kernels.for_device(payload.device).elias_decode(
            stream, codes[:numel], levels=self.levels, sparse=mark > 0, nonzeros=mark - 1
        )
        if not whole:
            raise ValueError("the Elias code is damaged.")
        return scales, codes


def _write(out: Tensor, *parts: Tensor) -> int:
    """Put `parts` one after the other into `out`."""
    size = sum(part.numel() for part in parts)
    torch.cat(parts, out=out[:size])
    return size


def _check_least(payload: Tensor, least: int) -> None:
    if payload.numel() < least:
        raise ValueError(f"the payload has {payload.numel()} bytes, expected {least} or more.")


def as_float(scales: Tensor) -> Tensor:
    """Bytes as float32, copied where the message has them at an odd address."""
    if scales.storage_offset() % 4 or scales.data_ptr() % 4:
        scales = scales.clone()
    return scales.view(torch.float32)


def _workspace(nbytes: int, device: torch.device) -> Tensor:
    """Room for one payload before it is entropy coded."""
    return scratch.of_thread().take("plain payload", nbytes, torch.uint8, device)


def compress(codes: Tensor) -> Tensor:
    """One zstd frame of `codes`.

    What codes of a quantizer have is an uneven histogram; matches of a few bytes are chance, and
    cost more than they save. A tiny table of long ones finds the runs that are none, and is fast.
    """
    if not hasattr(_local, "zstd"):  # compressors are not thread-safe, and costly to make
        settings = zstandard.ZstdCompressionParameters.from_level(1, min_match=7, hash_log=6)
        _local.zstd = zstandard.ZstdCompressor(compression_params=settings)
    frame = np.frombuffer(_local.zstd.compress(codes.numpy()), np.uint8)
    return torch.from_numpy(np.require(frame, requirements="W"))


def decompress(frame: Tensor, size: int) -> Tensor:
    """The `size` bytes of `frame`; what it promises is checked before anything is allocated."""
    data: Any = frame.numpy()
    try:
        promised = zstandard.frame_content_size(data)
        if promised != size:
            raise ValueError(f"the zstd frame holds {promised} bytes, expected {size}.")
        plain = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"the zstd frame is damaged: {error}.") from None
    out = _workspace(size, frame.device)
    out.numpy()[:] = np.frombuffer(plain, np.uint8)
    return out
