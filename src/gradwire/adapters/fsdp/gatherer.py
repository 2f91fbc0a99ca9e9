"""The weights of an FSDP module to all workers: coded by the owners of their shards, or raw.

An owner keeps its weights as they are: only what is computed with is rounded, and every step from
the weights themselves, so errors do not add up. Rounding is at random, and the same under the same
key, so that a backward pass computes with the weights of its forward pass.
"""

from __future__ import annotations

from torch import Tensor

from gradwire import collectives
from gradwire.adapters.fsdp.scatterer import is_coded
from gradwire.codec import Codec
from gradwire.key import Key
from gradwire.transport.link import Link


class Gatherer:
    """Gathers buffers. All ranks must ask for the same in the same order."""

    def __init__(self, codec: Codec, *, min_numel: int) -> None:
        self.codec = codec
        self.min_numel = min_numel

    def gather(self, link: Link, out: Tensor, own: Tensor, key: Key | None) -> None:
        """Fill `out` with the shards of all workers, of which `own` is this one's.

        Without a key, and below `min_numel` values, they travel raw.
        """
        if key is not None and is_coded(self.codec, out, self.min_numel):
            collectives.gather_shards(link, self.codec, out, own, key)
        else:
            link.account.message(own.numel(), own.nbytes)
            link.all_gather(out, own)
