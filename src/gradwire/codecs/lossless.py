r"""Lossless: all bits of all values, in fewer bytes.

A float is (-1)^s m 2^e. Signs s and mantissas m of gradients are as good as random, but exponents e
are alike: if the density of the values is smooth about zero, P(e = t - k) falls off like 2^-k, and
their entropy is about 2.5 bits, of 8. So e is sent by a fixed prefix code of that law, whose centre
is a byte for each chunk of 16384 values, and s and m as they are: 26.6 bits for a float32, 13.6 for
a float16, 10.6 for a bfloat16. Where many values are +0 they cost one bit each, and lowest bits
that no mantissa of a chunk uses cost nothing. `kernels/formats/lossless.py` has the code,
docs/codecs/lossless.md what it makes of gradients.

NaN with their payloads, infinities, -0 and subnormals arrive as they are. The mean is that of
`mean_floats`: values are added in the order of ranks in float64, and the mean is rounded to
float32. Every rank gets its bits: between two workers each computes it from both vectors; among
more the owner of a shard does, and sends it without loss too, in the type of the gradient.

There is no paper behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire import kernels
from gradwire.codec import Seen
from gradwire.codecs.settings import SpelledCodec, sizes_up_to
from gradwire.kernels.formats import lossless as form
from gradwire.key import Key


@dataclass(frozen=True)
class Lossless(SpelledCodec):
    """Every bit of every value: exponents in a prefix code, signs and mantissas as they are.

    >>> import torch, gradwire as gw
    >>> codec, x = gw.Lossless(), torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    >>> payload = codec.encode(x, gw.Key())
    >>> torch.equal(codec.decode(payload, 100_000, gw.Key()), x), 8 * payload.numel() // 100_000
    (True, 26)
    """

    unbiased = True
    fixed_size = False
    keeps_bits = True
    name = "lossless"

    def max_nbytes(self, numel: int) -> int:
        return form.max_nbytes(numel)

    def encode_into(self, x: Tensor, out: Tensor, key: Key, offset: int = 0) -> int:
        return kernels.for_device(x.device).pack_floats(x, out)

    def decode_into(
        self, payload: Tensor, out: Tensor, key: Key, offset: int = 0, *,
        weight: float = 1.0, accumulate: bool = False,
    ) -> None:  # fmt: skip
        """`out` may also have the type of the values: then it gets their bits."""
        kernel = kernels.for_device(out.device)
        _check_type(payload, out)
        _check(kernel.unpack_floats(_aligned(payload), out, weight=weight, accumulate=accumulate))

    def mean_into(
        self, payloads: Sequence[Tensor], out: Tensor, keys: Sequence[Key], offset: int = 0
    ) -> Seen:
        """Added in the order of ranks in float64."""
        kernel = kernels.for_device(out.device)
        _check(kernel.mean_packed_floats([_aligned(payload) for payload in payloads], out))
        return ()

    def anatomy(self, payload: Tensor, numel: int) -> dict[str, int]:
        heads = form.HEAD.itemsize * -(-numel // form.CHUNK)
        return sizes_up_to("values", payload, mark=form.MARK, heads=heads)


def _aligned(payload: Tensor) -> Tensor:
    """Copied where the message has it at an odd address."""
    return payload.clone() if payload.data_ptr() % 4 else payload


def _check(is_whole: bool) -> None:
    if not is_whole:
        raise ValueError("the payload is damaged: its chunks do not fit together.")


def _check_type(payload: Tensor, out: Tensor) -> None:
    """Refuse to put values of one 16-bit type into the other."""
    if out.dtype == torch.float32 or not payload.numel():
        return
    own = form.KINDS[str(out.dtype).removeprefix("torch.")].mark
    if payload[0] != own:
        raise ValueError(
            f"the payload is damaged, or holds other floats than {out.dtype}; decode it to float32."
        )
