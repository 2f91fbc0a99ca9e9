"""How a codec's payloads travel: `all_reduce`, `all_gather`, `two_shot`, `code_reduce`.

Each replaces the gradients of a list of slices by their mean over the workers. `simulate` says in
one process what that mean is; the others must give the same bits on every rank.

- `all_reduce` sums terms in the network: for a `SummableCodec` and no other.
- `all_gather` sends every payload to everyone: traffic grows with the workers; best for two.
- `two_shot` cuts the slices into shards, one owned by each worker. Payloads of a shard go to its
  owner (first shot), who decodes, averages and encodes again for all (second shot). A worker
  sends about two payloads however many workers there are.
- `code_reduce` is a `two_shot` (an `all_gather` between two) whose owners add codes in the order
  of ranks: for a `ReducibleCodec` and no other. It sends less than `all_reduce`, whose terms have
  room for the sum from the start, and adds floats alike wherever they lie in the message.

Beside these, `reduce_scatter` is the first shot alone: owners keep the means of their shards. And
`gather_shards` takes no mean: owners send the shards that they have to everyone.

Each of the four returns the failure rate of every parameter (`Codec.failure_rate`), the same on all
ranks; none if the codec's payloads do not depend on each other.

Random streams are keyed by parameter and position in it, so the mean does not depend on how
parameters are gathered into buckets or cut into slices and shards. Only float32 terms of `none` in
`all_reduce` do: among three or more workers a ring adds them in an order that depends on their
place.
"""

from __future__ import annotations

from gradwire.collectives.choose import check, choose
from gradwire.collectives.codes import code_reduce, sum_codes
from gradwire.collectives.gathering import gather_shards
from gradwire.collectives.payloads import all_gather, two_shot
from gradwire.collectives.scatter import reduce_scatter
from gradwire.collectives.simulation import simulate
from gradwire.collectives.terms import all_reduce

COLLECTIVES = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "two_shot": two_shot,
    "code_reduce": code_reduce,
}

__all__ = [
    "COLLECTIVES",
    "all_gather",
    "all_reduce",
    "check",
    "choose",
    "code_reduce",
    "gather_shards",
    "reduce_scatter",
    "simulate",
    "sum_codes",
    "two_shot",
]
