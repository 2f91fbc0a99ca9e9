"""Which collective suits a codec."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.adaptive import AdaptiveCodec
from gradwire.codec import Codec
from gradwire.codecs import as_codec
from gradwire.collectives.all_gather import AllGather
from gradwire.collectives.all_reduce import AllReduce
from gradwire.collectives.code_reduce import CodeReduce
from gradwire.collectives.collective import Collective
from gradwire.collectives.image_reduce import ImageReduce
from gradwire.collectives.low_rank import LowRankReduce
from gradwire.collectives.relay import Relay
from gradwire.collectives.two_shot import TwoShot
from gradwire.key import Key

_ALL: tuple[Collective, ...] = (
    AllReduce(), AllGather(), TwoShot(), Relay(), CodeReduce(), ImageReduce(), LowRankReduce(),
)  # fmt: skip
COLLECTIVES = {collective.name: collective for collective in _ALL}


def choose(codec: Codec, world: int, name: str | None = None) -> Collective:
    """The collective called `name`, or what suits `codec` among `world` workers.

    A pair that has no meaning is refused, and so is a sum for which there is no room.
    """
    many = "two_shot" if codec.unbiased else "relay"
    name = name or codec.collective or ("all_gather" if world <= 2 else many)
    if name not in COLLECTIVES:
        raise ValueError(f"`collective` must be one of {', '.join(COLLECTIVES)}, got {name}.")
    COLLECTIVES[name].check(codec, world)
    return COLLECTIVES[name]


def simulate(
    codec: Codec | str, vectors: Sequence[Tensor], key: Key, collective: str | None = None
) -> Tensor:
    """The mean that workers holding `vectors` agree on (float32, flat).

    Sums are taken in the order of ranks. In `all_reduce` a backend may add the floats of `none` in
    another order and differ in the last bit. A codec that learns is as it is in the first step.
    """
    codec, world = as_codec(codec), len(vectors)
    vectors = [vector.detach().reshape(-1) for vector in vectors]
    if isinstance(codec, AdaptiveCodec):
        codec = codec.first(vectors[0].numel())
    return choose(codec, world, collective).simulate(codec, vectors, key)
