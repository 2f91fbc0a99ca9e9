"""`reduce_scatter`: payloads of each shard go to its owner, who keeps the mean."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.collectives import framing
from gradwire.collectives.feedback import all_finite, owe, sources, tell
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
    pieces, own_key = whole(shards), key.of(rank=link.rank)
    inputs = sources(link, pieces)
    message, sizes = framing.encode_all(link, pieces, inputs, own_key)
    all_sizes = framing.announce(link, pieces, sizes)
    rows = framing.exchange(link, message, all_sizes, [1] * link.size)
    (mean,), _ = framing.average(link, framing.received([pieces[link.rank]], rows, key))
    sent = framing.sent(pieces, framing.payloads_of(message, sizes), own_key)
    for own, source in zip(sent, inputs, strict=True):
        tell(own.piece, source, own.subtract)
    if any(shard.residual is not None for shard in shards):
        _settle(link, sent, inputs, mean)
    return mean


def _settle(
    link: Link, sent: Sequence[framing.Sent], inputs: Sequence[Tensor], mean: Tensor
) -> None:
    """Update the residuals of shards whose mean is finite.

    Only the owner of a shard sees its mean, so owners tell everyone.
    """
    finite = link.gather_flags(all_finite(mean))
    with link.account.timed("decode"):
        for own, source, is_new in zip(sent, inputs, finite, strict=True):
            owe(link, own.piece, source, own.subtract, is_new)
