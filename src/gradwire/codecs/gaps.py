"""Where the values of a sparse vector are, as gaps in Rice's code (`kernels/protocol/sparse.py`).

The low bits of all gaps come first, then the unary part, in whole words of 8 bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire import kernels, scratch
from gradwire.kernels.formats.layout import packed_nbytes

MAX_RICE = 15


def bitmap_nbytes(numel: int) -> int:
    """Bytes of a bitmap of `numel` bits: whole words of 64."""
    return 8 * -(-numel // 64)


def best_rice(bitmap: Tensor, kept: int) -> tuple[int, int]:
    """How many low bits make the gaps of `bitmap`, which names `kept` values, shortest; bytes."""
    unary_bits = kernels.for_device(bitmap.device).gap_sizes(bitmap)
    sizes = [packed_nbytes(kept, r) + bitmap_nbytes(bits) for r, bits in enumerate(unary_bits)]
    return sizes.index(min(sizes)), min(sizes)


def max_gaps_nbytes(numel: int, kept: int) -> int:
    """The most bytes that the gaps of up to `kept` of `numel` values take, with the best rice."""
    return min(
        packed_nbytes(kept, rice) + bitmap_nbytes(kept + (numel >> rice))
        for rice in range(MAX_RICE + 1)
    )


def write_gaps(bitmap: Tensor, kept: int, rice: int, out: Tensor) -> None:
    """Fill `out`, which has the size that `best_rice` says."""
    low, rest = out[: packed_nbytes(kept, rice)], out[packed_nbytes(kept, rice) :]
    unary = scratch_bytes("unary", rest.numel(), out.device)
    kernels.for_device(bitmap.device).gap_encode(bitmap, low, unary, rice=rice)
    rest.copy_(unary)


def read_gaps(gaps: Tensor, bitmap: Tensor, *, kept: int, rice: int, numel: int) -> bool:
    """Write the bitmap; False if these are not the gaps of `kept` of `numel` values."""
    low_nbytes = packed_nbytes(kept, rice)
    low, rest = gaps[:low_nbytes], gaps[low_nbytes:]
    if low.numel() < low_nbytes or rest.numel() % 8:
        return False
    unary = scratch_bytes("unary", rest.numel(), rest.device).copy_(rest)
    kernel = kernels.for_device(bitmap.device)
    return kernel.gap_decode(low, unary, bitmap, rice=rice, count=kept, numel=numel)


def scratch_bytes(name: str, nbytes: int, device: torch.device) -> Tensor:
    """Memory of this thread that is used again."""
    return scratch.of_thread().take(name, nbytes, torch.uint8, device)
