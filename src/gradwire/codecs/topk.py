r"""SparseLoCo's codec: the largest values of every block, in two bits each and where they are.

A worker of SparseLoCo takes H steps on its own, adds the change of its weights to a residual e,
sends a few values of that, and keeps the rest; all take the mean of what was sent as a step:

    e <- beta e + (theta_before - theta_after),   v = Q(Top_k(e)),   e <- e - v              (1)
    theta <- theta_before - alpha mean_r v_r                                                 (2)

Top_k keeps k values of each block of m, those of the largest magnitude; Q rounds them to 2 bits,
here a sign and one of two levels of the block, L < H. For magnitudes a_1 >= ... >= a_k and the cut
j, the best levels are the means of the two groups, and the best cut captures most:

    H = S_j / j,   L = (S_k - S_j) / (k - j),   S_j = a_1 + ... + a_j                        (3)
    sum_i (a_i - Q(a_i))^2 = sum_i a_i^2 - S_j^2 / j - (S_k - S_j)^2 / (k - j),  j best      (4)

Levels are then rounded, by 1/17 at most, to be sent in 16 bits a block, and the whole of it is a
contraction: for every x, with 2 bits, and with 1 bit if k^2 <= m,

    |x - Q(Top_k(x))|^2 <= (1 - (1 - 2^-8) density) |x|^2                                    (5)

Where the kept values are is said by the gaps between them, in Rice's code. A fraction p of values
at independent places takes p (1 + r) + p q / (1 - q) bits per value, q = (1 - p)^(2^r), with the
best r: 0.1176 at p = 1/64, r = 5, where the entropy is 0.1161 and indices of 12 bits take 0.1875.

A. Sarfi, B. Therien, J. Lidin, E. Belilovsky, "Communication Efficient LLM Pre-training with
SparseLoCo", 2025, arXiv:2508.15706: blocks of 4,096 values, of which 1 to 3 % are sent in 2 bits,
and beta = 0.95. R. F. Rice, "Some Practical Universal Noiseless Coding Techniques", JPL 79-22,
1979, after S. W. Golomb, "Run-Length Encodings", IEEE Transactions on Information Theory 12, 1966.

    paper          here
    chunk          `block`
    k / chunk      `density`
    Q              `bits`; see kernels/protocol/levels.py and kernels/formats/levels.py
    e, beta        residuals of error feedback, and what is kept of them: not part of a codec

Differences from the paper: levels belong to a block and are the best for it. Zeros are never sent.
Places are coded. A block is a stretch of the flattened tensor. Derivations and measured tables:
docs/codecs/topk.md.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from gradwire import kernels, scratch
from gradwire.codecs.gaps import (
    MAX_RICE,
    best_rice,
    bitmap_nbytes,
    max_gaps_nbytes,
    read_gaps,
    scratch_bytes,
    write_gaps,
)
from gradwire.codecs.settings import SpelledCodec, sizes_up_to
from gradwire.kernels.formats.layout import grain_of, num_blocks, packed_nbytes
from gradwire.kernels.formats.levels import LAST_STEP, SPOILT, STEP_BITS, TOP, rise
from gradwire.key import Key

_HEAD = struct.Struct("<Q")
_KEPT = (1 << 56) - 1
"""The bits of the head that say how many values are kept; rice is in those above."""
_MAX_BLOCK = 1 << 16
_MAX_DENSITY = 0.125


@dataclass(frozen=True)
class TopK(SpelledCodec):
    """Keep the largest values of each block, in one or two bits.

    density: the fraction that is kept, up to 0.125: ceil(density * block) values of each block.
    bits: 2 for a sign and one of two levels of the block, 1 for a sign alone.
    block: values among which the largest are kept, a power of two.

    >>> import torch, gradwire as gw
    >>> codec = gw.TopK(density=0.125, block=32)
    >>> x = torch.cat((torch.tensor([1.0, -2.0, 0.0, 4.0, 0.5, 2.0]), torch.zeros(26)))
    >>> codec.decode(codec.encode(x, gw.Key()), 32, gw.Key())[:6]
    tensor([ 1.6250, -1.6250,  0.0000,  4.0000,  0.0000,  1.6250])
    """

    density: float = 0.015625
    bits: int = 2
    block: int = 4096

    unbiased = False
    fixed_size = False
    host_only = "has messages whose length and head the CPU works out so far"
    collective = "all_gather"  # encoding the mean once more would lose energy that no one keeps
    name = "topk"

    def __post_init__(self) -> None:
        density, block = self.density, self.block
        if not isinstance(density, float) or not 0 < density <= _MAX_DENSITY:
            raise ValueError(
                f"`density` must be above 0 and at most {_MAX_DENSITY}, got {density!r}; to keep "
                "more, `dqsg` or `fft:domain=time` take fewer bits for the same error."
            )
        if self.bits not in (1, 2) or isinstance(self.bits, bool):
            raise ValueError(f"`bits` must be 1 or 2, got {self.bits!r}.")
        if not isinstance(block, int) or not 8 <= block <= _MAX_BLOCK or block & (block - 1):
            raise ValueError(
                f"`block` must be a power of two from 8 to {_MAX_BLOCK}, got {block!r}."
            )

    @property
    def count(self) -> int:
        """The paper's k: how many values of a whole block are kept."""
        return math.ceil(Fraction(str(self.density)) * self.block)

    @property
    def grain(self) -> int | None:
        return grain_of(self.block)

    def max_kept(self, numel: int) -> int:
        """How many values of `numel` are kept, if none is zero."""
        whole, rest = divmod(numel, self.block)
        return whole * self.count + -(-rest * self.count // self.block)

    def max_nbytes(self, numel: int) -> int:
        """A bound: how many bytes say where the values are depends on where they are."""
        kept = self.max_kept(numel)
        return sum(self._sizes(numel, kept).values()) + max_gaps_nbytes(numel, kept)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        """Nothing is random."""
        kernel, numel = kernels.for_device(x.device), x.numel()
        shape = num_blocks(numel, self.block), self.count
        values = scratch.of_thread().take("kept", math.prod(shape), torch.float32, x.device)
        bitmap = scratch_bytes("bitmap", bitmap_nbytes(numel), x.device)
        kernel.largest_of_blocks(x, bitmap, values.view(shape), block=self.block)
        sizes = list(self._sizes(numel, self.max_kept(numel)).values())
        head, levels, codes = torch.split(out[: sum(sizes)], sizes)
        kept = kernel.fit_levels(values.view(shape), levels, codes, bits=self.bits)
        rice, gaps_nbytes = best_rice(bitmap, kept)
        head.copy_(torch.frombuffer(bytearray(_HEAD.pack(kept | rice << 56)), dtype=torch.uint8))
        at = sum(self._sizes(numel, kept).values())
        write_gaps(bitmap, kept, rice, out[at : at + gaps_nbytes])
        return at + gaps_nbytes

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """What is added to `out` costs as much as there are values kept."""
        numel = out.numel()
        kept, rice = self._head(payload, numel)
        sizes = list(self.anatomy(payload, numel).values())
        _, levels, codes, gaps = torch.split(payload, sizes)
        bitmap = scratch_bytes("bitmap", bitmap_nbytes(numel), payload.device)
        self._check_levels(levels)
        if not read_gaps(gaps, bitmap, kept=kept, rice=rice, numel=numel):
            raise ValueError("the gaps are damaged: they are not as many as the head promises.")
        if not accumulate:
            out.zero_()
        kernels.for_device(out.device).add_levels(
            bitmap, levels, codes, out, block=self.block, bits=self.bits, weight=weight
        )

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        """A head, the levels of the blocks, the codes of the values, and where they are."""
        kept, _ = self._head(payload, numel)
        return sizes_up_to("gaps", payload, **self._sizes(numel, kept))

    def _head(self, payload: Tensor, numel: int) -> tuple[int, int]:
        """How many are kept, and rice."""
        if payload.numel() < _HEAD.size:
            raise ValueError(
                f"the payload has {payload.numel()} bytes, expected {_HEAD.size} or more."
            )
        (word,) = _HEAD.unpack(payload[: _HEAD.size].numpy().tobytes())
        kept, rice = word & _KEPT, word >> 56
        if kept > numel or rice > MAX_RICE:
            raise ValueError("the head is damaged, or promises more values than there are.")
        return kept, rice

    def _check_levels(self, levels: Tensor) -> None:
        """Refuse what no encoder writes: levels beyond the largest float, or two with one bit."""
        octets = levels.view(-1, 2).to(torch.int64)
        words = octets[:, 0] | octets[:, 1] << 8
        most = torch.tensor([TOP - rise(step) for step in range(LAST_STEP + 1)])
        if self.bits == 1:
            most[1:] = -1
        lower = words >> STEP_BITS
        if not ((lower <= most[words & LAST_STEP]) | (words == SPOILT)).all():
            raise ValueError("the levels are damaged: not all of them are finite.")

    def _sizes(self, numel: int, kept: int) -> dict[str, int]:
        """The parts before the gaps and their bytes."""
        levels = 2 * num_blocks(numel, self.block)
        return {"head": _HEAD.size, "levels": levels, "codes": packed_nbytes(kept, self.bits)}
