r"""QSGD: stochastic rounding of each block to s levels of its norm.

For a block v with norm |v|, every value is rounded at random to a neighbouring level,

    Q(v)_i = |v| * sgn(v_i) * z_i / s,   z_i = floor(s |v_i| / |v| + u_i),   u_i ~ U[0, 1)   (1)

so that E Q(v) = v. With the l2 norm and n values in a block (lemma 3.1):

    E |Q(v) - v|^2  = |v|^2 / s^2 * sum_i p_i (1 - p_i),  p_i the fraction rounded away      (2)
                   <= min(n / s^2, sqrt(n) / s) |v|^2                                        (3)
    E nonzeros     <= s (s + sqrt(n))                                                        (4)

The message of a block is its norm and the integers z_i with their signs. They travel in one of
three wires: `packed` in fields of a fixed width; `elias` in the paper's recursive code, sparse
(gap, sign, z of the nonzeros) or dense (z + 1 of every value, sign of the nonzeros), whichever
is shorter; `zstd`, entropy coded at memory speed.

D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic, "QSGD: Communication-Efficient SGD via
Gradient Quantization and Encoding", NeurIPS 2017, arXiv:1610.02132: section 3.1 and its
experiments' max-norm.

    paper               here
    n, d (bucket size)  values in a block, `block`
    s                   `num_levels`
    |v|_2, max |v|      `norm="l2"`, `norm="max"`
    zeta_i              |code - num_levels|

Differences from the paper: the scale is by default the block's maximum, as in the paper's
experiments, not its theory. Rounding down of the signed value replaces rounding of the magnitude;
the law is the same. Positions of the sparse code run through the whole payload, which says how
many nonzeros there are. The dense code gives no sign to zeros. A block with an inf or a NaN
decodes to NaN. Derivations and measured tables: docs/codecs/qsgd.md.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import zstandard
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Codec, Key, check_size
from gradwire.kernels.layout import TILE, check_block, num_blocks, packed_nbytes

_WIRES = ("packed", "elias", "zstd")
_NORMS = ("max", "l2")
_MAX_BLOCK = 1 << 31
_ELIAS_HEADER = 8
_ZSTD_WIDTH = {2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 8: 8}
"""zstd models bytes, so codes must not straddle them; what padding adds, it takes away again."""

_local = threading.local()


@dataclass(frozen=True)
class QSGD(Codec):
    """Quantize every block to `bits` bits a value, or to `levels` levels on each side of zero.

    bits: 2 to 8, one of them the sign; fewer are coarser. `levels` (1 to 127) overrides it.
    norm: "max", or "l2" as in the theory, which makes many zeros.
    block: values that share a scale; smaller is finer and costs 32 / block bits a value more.
    wire: "packed", "elias" or "zstd".

    >>> import torch, gradwire as gw
    >>> codec = gw.QSGD(bits=4)
    >>> x = torch.tensor([1.0, -2.0, 0.0, 4.0])
    >>> codec.decode(codec.encode(x, gw.Key(seed=1)), 4, gw.Key(seed=1))
    tensor([ 1.1429, -2.2857,  0.0000,  4.0000])
    """

    bits: int = 4
    levels: int | None = None
    norm: str = "max"
    block: int | None = 512
    wire: str = "packed"

    unbiased = True
    name = "qsgd"

    def __post_init__(self) -> None:
        if self.levels is not None:
            self._resolve_levels(self.levels)
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 8:
            raise ValueError(f"`bits` must be an integer from 2 to 8, got {self.bits!r}.")
        if self.norm not in _NORMS:
            raise ValueError(f'`norm` must be "max" or "l2", got {self.norm!r}.')
        if self.wire not in _WIRES:
            raise ValueError(f'`wire` must be "packed", "elias" or "zstd", got {self.wire!r}.')
        check_block(self.block)
        if self.block is not None and self.block > _MAX_BLOCK:
            raise ValueError(f"`block` must be at most 2**31 or None, got {self.block}.")

    def _resolve_levels(self, levels: int) -> None:
        """Derive `bits` from `levels`; where `bits` says it all, drop `levels`."""
        if not isinstance(levels, int) or not 1 <= levels <= 127:
            raise ValueError(f"`levels` must be an integer from 1 to 127, got {levels!r}.")
        bits = (2 * levels).bit_length()
        if self.bits not in (QSGD.bits, bits):
            raise ValueError(
                f"`levels={levels}` needs {bits} bits, got `bits={self.bits}`; give one of the two."
            )
        object.__setattr__(self, "bits", bits)
        object.__setattr__(self, "levels", None if levels == (1 << bits - 1) - 1 else levels)

    def settings(self) -> dict[str, Any]:
        """As for any codec, but the resolution is always said."""
        resolution = {"levels": self.levels} if self.levels else {"bits": self.bits}
        rest = {k: v for k, v in super().settings().items() if k not in ("bits", "levels")}
        return resolution | rest

    @property
    def num_levels(self) -> int:
        """The paper's s."""
        return self.levels if self.levels is not None else (1 << self.bits - 1) - 1

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        """Only packed payloads have a size that is known beforehand."""
        return self.wire == "packed"

    @property
    def grain(self) -> int | None:
        """Blocks and tiles stay whole."""
        return None if self.block is None else max(self.block, TILE)

    def max_nbytes(self, numel: int) -> int:
        """Exact for `packed`; a bound for `elias` and `zstd`."""
        scales = 4 * num_blocks(numel, self.block)
        if self.wire == "packed":
            return scales + packed_nbytes(numel, self.bits)
        codes = packed_nbytes(numel, 8 if self.wire == "elias" else _ZSTD_WIDTH[self.bits])
        if self.wire == "zstd":
            return scales + codes + codes // 128 + 1024  # above zstd's own bound
        return _ELIAS_HEADER + scales + 2 * codes  # at most 15 bits a value: omega(128), sign

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        """The norms, then the codes in their wire; see `Codec.encode_into`."""
        if self.wire == "packed":
            size = self.max_nbytes(x.numel())
            self._quantize(x, out[:size], self.bits, key, offset)
            return size
        width = 8 if self.wire == "elias" else _ZSTD_WIDTH[self.bits]
        num_scales = 4 * num_blocks(x.numel(), self.block)
        plain = _workspace(num_scales + packed_nbytes(x.numel(), width), x.device)
        self._quantize(x, plain, width, key, offset)
        scales, codes = plain[:num_scales], plain[num_scales:]
        if self.wire == "zstd":
            return _write(out, scales, _compress(codes))
        return _write(out, *self._elias(codes[: x.numel()], scales))

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
        """See `Codec.decode_into`; neither `key` nor `offset` matters to QSGD."""
        num_scales = 4 * num_blocks(out.numel(), self.block)
        width = self.bits
        if self.wire == "packed":
            check_size(payload, self.max_nbytes(out.numel()))
            scales, codes = payload[:num_scales], payload[num_scales:]
        elif self.wire == "zstd":
            width = _ZSTD_WIDTH[self.bits]
            _check_least(payload, num_scales)
            scales = payload[:num_scales]
            codes = _decompress(payload[num_scales:], packed_nbytes(out.numel(), width))
        else:
            width = 8
            scales, codes = self._from_elias(payload, out.numel(), num_scales)
        kernels.select(out.device).dequantize(
            _as_float(scales), codes, out, levels=self.num_levels, width=width, block=self.block,
            weight=weight, accumulate=accumulate,
        )  # fmt: skip

    def _quantize(self, x: Tensor, out: Tensor, width: int, key: Key, offset: int) -> None:
        """Scales and codes straight into `out`: eq. (1)."""
        num_scales = 4 * num_blocks(x.numel(), self.block)
        kernels.select(x.device).quantize(
            x, out[:num_scales].view(torch.float32), out[num_scales:], levels=self.num_levels,
            width=width, block=self.block, norm=self.norm, key=key, offset=offset,
        )  # fmt: skip

    def _elias(self, codes: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Header, scales, and the shorter of the two codes.

        The header is one little-endian word: 0 for the dense code, 1 + nonzeros for the sparse.
        """
        kernel = kernels.select(codes.device)
        nonzeros, sparse, dense = kernel.elias_sizes(codes, levels=self.num_levels)
        use_sparse = sparse < dense
        header = torch.tensor([1 + nonzeros if use_sparse else 0]).view(torch.uint8)
        stream = torch.empty(-(-min(sparse, dense) // 8), dtype=torch.uint8)
        kernel.elias_encode(codes, stream, levels=self.num_levels, sparse=use_sparse)
        return header, scales, stream

    def _from_elias(self, payload: Tensor, numel: int, num_scales: int) -> tuple[Tensor, Tensor]:
        _check_least(payload, _ELIAS_HEADER + num_scales)
        mark = int(payload[:_ELIAS_HEADER].clone().view(torch.int64))
        scales = payload[_ELIAS_HEADER : _ELIAS_HEADER + num_scales]
        stream = payload[_ELIAS_HEADER + num_scales :]
        shortest = 2 * (mark - 1) if mark else numel  # bits: a gap, a sign and a magnitude
        if not 0 <= mark <= numel + 1 or shortest > 8 * stream.numel():
            raise ValueError("the Elias code promises more values than it has bits.")
        codes = torch.empty(packed_nbytes(numel, 8), dtype=torch.uint8, device=payload.device)
        whole = kernels.select(payload.device).elias_decode(
            stream, codes[:numel], levels=self.num_levels, sparse=mark > 0, nonzeros=mark - 1
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


def _as_float(scales: Tensor) -> Tensor:
    """Bytes as float32, copied where the message has them at an odd address."""
    if scales.storage_offset() % 4 or scales.data_ptr() % 4:
        scales = scales.clone()
    return scales.view(torch.float32)


def _workspace(nbytes: int, device: torch.device) -> Tensor:
    """Room for one payload before it is entropy coded, kept for the next call on this thread."""
    room: Tensor | None = getattr(_local, "room", None)
    if room is None or room.numel() < nbytes or room.device != device:
        room = _local.room = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return room[:nbytes]


def _compress(codes: Tensor) -> Tensor:
    if not hasattr(_local, "zstd"):  # compressors are not thread-safe, and costly to make
        _local.zstd = zstandard.ZstdCompressor(level=1)
    frame = np.frombuffer(_local.zstd.compress(codes.numpy()), np.uint8)
    return torch.from_numpy(np.require(frame, requirements="W"))


def _decompress(frame: Tensor, size: int) -> Tensor:
    """The `size` bytes of `frame`; what it promises is checked before anything is allocated."""
    data: Any = frame.numpy()
    try:
        promised = zstandard.frame_content_size(data)
        if promised != size:
            raise ValueError(f"the zstd frame holds {promised} bytes, expected {size}.")
        plain = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"the zstd frame is damaged: {error}.") from None
    room = _workspace(size, frame.device)
    room.numpy()[:] = np.frombuffer(plain, np.uint8)
    return room
