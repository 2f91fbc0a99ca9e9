"""`reduce_scatter`: payloads of each shard go to its owner, who keeps the mean."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.collectives import framing
from gradwire.collectives.feedback import Own, all_finite, vectors_of
from gradwire.collectives.parts import Part, whole
from gradwire.key import Key
from gradwire.transport.link import Link


def reduce_scatter(link: Link, shards: Sequence[Part], key: Key) -> Tensor:
    """The mean of this worker's shard (float32, in scratch memory of `link`).

    There is one shard for each worker, in the order of ranks. Each is a vector of its own, with a
    number of its own, so they may be cut anywhere, whatever the codec's grain. The mean is what
    `simulate` says of `all_gather`: it is encoded once and never again. Values are left as they
    were, and residuals take up the error.
    """
    pieces = whole(shards)
    vectors, own_key = vectors_of(link, pieces), key.of(rank=link.rank)
    message, sizes = framing.encode_all(link, pieces, [v.encode for v in vectors], own_key)
    all_sizes = framing.announce(link, pieces, sizes)
    rows = framing.exchange(link, message, all_sizes, [1] * link.size)
    (mean,), _ = framing.average(link, framing.received([pieces[link.rank]], rows, key))
    if any(shard.residual is not None for shard in shards):
        _settle(link, vectors, mean)
    return mean


def _settle(link: Link, vectors: Sequence[Own], mean: Tensor) -> None:
    """Update the residuals of shards whose mean is finite.

    Only the owner of a shard sees its mean, so owners tell everyone.
    """
    finite = link.gather_flags(all_finite(mean))
    with link.account.timed("decode"):
        for vector, is_new in zip(vectors, finite, strict=True):
            vector.owe(is_new)
