r"""QSGD: stochastic rounding of each block to s levels of its norm.

For a block v with norm |v|, every value is rounded at random to a neighbouring level,

    Q(v)_i = |v| * sgn(v_i) * z_i / s,   z_i = floor(s |v_i| / |v| + u_i),   u_i ~ U[0, 1)   (1)

so that E Q(v) = v. With the l2 norm and n values in a block (lemma 3.1):

    E |Q(v) - v|^2  = |v|^2 / s^2 * sum_i p_i (1 - p_i),  p_i the fraction rounded away      (2)
                   <= min(n / s^2, sqrt(n) / s) |v|^2                                        (3)
    E nonzeros     <= s (s + sqrt(n))                                                        (4)

The message of a block is its norm and the integers z_i with their signs. They travel in one of
three codings: `packed` in fields of a fixed width; `elias` in the paper's recursive code, sparse
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
many nonzeros there are. The dense code gives no sign to zeros. Norms stay below 2^127, so values
beyond it count as 2^127. A block with an inf or a NaN decodes to NaN. Derivations and measured
tables: docs/codecs/qsgd.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire import kernels
from gradwire.codec import Seen
from gradwire.codecs.coding import Coding, check_wire
from gradwire.codecs.settings import ResolvedCodec
from gradwire.kernels.formats.debt import Debt
from gradwire.kernels.formats.layout import check_block, grain_of
from gradwire.key import Key

_NORMS = ("max", "l2")


@dataclass(frozen=True)
class QSGD(ResolvedCodec):
    """Quantize every block to `bits` bits per value, or to `levels` levels on each side of zero.

    bits: 2 to 8, one of them the sign; fewer are coarser. `levels` (1 to 127) overrides it.
    norm: "max", or "l2" as in the theory, which makes many zeros.
    block: values that share a scale; smaller is finer and costs 32 / block bits per value more.
    wire: "packed", "huffman", "elias" or "zstd".

    >>> import torch, gradwire as gw
    >>> codec = gw.QSGD(bits=4)
    >>> x = torch.tensor([1.0, -2.0, 0.0, 4.0])
    >>> codec.decode(codec.encode(x, gw.Key(seed=1)), 4, gw.Key(seed=1))
    tensor([ 1.1429, -1.7143,  0.0000,  4.0000])
    """

    bits: int = 4
    levels: int | None = None
    norm: str = "max"
    block: int | None = 512
    wire: str = "packed"

    unbiased = True
    name = "qsgd"

    def __post_init__(self) -> None:
        self._resolve()
        if self.norm not in _NORMS:
            raise ValueError(f'`norm` must be "max" or "l2", got {self.norm!r}.')
        check_wire(self.wire)
        check_block(self.block)

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.wire == "packed"

    @property
    def grain(self) -> int | None:
        return grain_of(self.block)

    def max_nbytes(self, numel: int) -> int:
        return self._coding.max_nbytes(numel)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        return self._encode(x, None, out, key, offset)

    def encode_owing_into(
        self, x: Tensor, debt: Debt, out: Tensor, key: Key, offset: int = 0
    ) -> int:
        return self._encode(x, debt, out, key, offset)

    def _encode(self, x: Tensor, debt: Debt | None, out: Tensor, key: Key, offset: int) -> int:

        def quantize(scales: Tensor, codes: Tensor, width: int) -> None:  # eq. (1)
            kernels.for_device(x.device).quantize(
                x, scales, codes, debt, levels=self.num_levels, width=width, block=self.block,
                norm=self.norm, key=key, offset=offset,
            )  # fmt: skip

        return self._coding.encode(x.numel(), out, quantize)

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        scales, codes = self._coding.decode(payload, out.numel())
        kernels.for_device(out.device).dequantize(
            scales, codes, out, levels=self.num_levels, width=self._coding.width,
            block=self.block, weight=weight, accumulate=accumulate,
        )  # fmt: skip

    def mean_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> Seen:
        """Packed payloads are decoded and averaged in one pass."""
        if self.wire != "packed":
            return super().mean_into(payloads, out, keys, offset)
        pairs = [self._coding.decode(payload, out.numel()) for payload in payloads]
        kernels.for_device(out.device).dequantize_mean(
            [scales for scales, _ in pairs], [codes for _, codes in pairs], out,
            levels=self.num_levels, width=self._coding.width, block=self.block,
        )  # fmt: skip
        return ()

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        return self._coding.anatomy(payload, numel)

    @property
    def _coding(self) -> Coding:
        return Coding(self.wire, self.bits, self.num_levels, self.block)
