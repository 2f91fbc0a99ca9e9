"""`reduce_scatter`: payloads of each shard go to its owner, who keeps the mean."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.codec import Codec, is_finite
from gradwire.collectives.feedback import take
from gradwire.collectives.framing import exchange, payloads_of
from gradwire.collectives.parts import Part, Slice, whole
from gradwire.collectives.payloads import announce, average, encode_all
from gradwire.key import Key
from gradwire.transport.link import Link


def reduce_scatter(link: Link, codec: Codec, shards: Sequence[Part], key: Key) -> Tensor:
    """The mean of this worker's shard (float32, in scratch memory of `link`).

    There is one shard for each worker, in the order of ranks. Each is a vector of its own, with a
    number of its own, so they may be cut anywhere, whatever the codec's grain. The mean is what
    `simulate` says of `all_gather`: it is encoded once and never again. Values are left as they
    were, and residuals take up the error.
    """
    pieces = whole(shards)
    inputs = take(link, pieces)
    message, sizes = encode_all(link, codec, pieces, inputs, key)
    all_sizes = announce(link, codec, pieces, sizes)
    received = exchange(link, message, all_sizes, [1] * link.size)
    (mean,), _ = average(link, codec, [pieces[link.rank]], received, key)
    if any(shard.residual is not None for shard in shards):
        _settle(link, codec, pieces, inputs, payloads_of(message, sizes), mean, key)
    return mean


def _settle(
    link: Link,
    codec: Codec,
    pieces: Sequence[Slice],
    inputs: Sequence[Tensor],
    payloads: Sequence[Tensor],
    mean: Tensor,
    key: Key,
) -> None:
    """Each source less what its payload says becomes the residual.

    Where the mean is not finite the residual stays as it was. Only the owner of a shard sees its
    mean, so owners tell everyone.
    """
    finite = link.gather_sizes([int(is_finite(mean))])
    with link.account.timed("decode"):
        for i, (piece, source, payload) in enumerate(zip(pieces, inputs, payloads, strict=True)):
            if piece.residual is not None and finite[i][0]:
                own = key.of(tensor=piece.part.tensor, rank=link.rank)
                piece.residual.copy_(source)
                codec.decode_into(payload, piece.residual, own, weight=-1.0, accumulate=True)
