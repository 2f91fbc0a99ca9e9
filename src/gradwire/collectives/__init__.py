"""How what codecs make of gradients travels, and how the mean gets to everyone.

- `all_reduce` sums codes in the network: for codecs with a `NetworkAdder` and no others.
- `all_gather` sends every payload to everyone: traffic grows with the workers; best for two.
- `two_shot` sends payloads to the owners of shards, who decode, average and encode again for all.
- `relay` is a `two_shot` whose owners feed back what they lose: for biased codecs.
- `code_reduce` is a `two_shot` whose owners add codes: for a `SummableCodec` and no other.
- `image_reduce` is a `code_reduce` of images: for an `AffineCodec` and no other.
- `low_rank` is two of them, one of each factor of a matrix: for PowerSGD's steps and no others.

Each is a `Collective`, with a `simulate` that says in one process what the mean is. Beside these,
`reduce_scatter` is the first shot of a `two_shot` alone: owners keep the means of their shards. And
`gather_shards` takes no mean: owners send the shards that they have to everyone.

Random streams are keyed by parameter and position in it, so the mean does not depend on how
parameters are gathered into buckets or cut into slices and shards. Only float32 codes of `none` in
`all_reduce` do: among three or more workers a ring adds them in an order that depends on their
place.
"""

from __future__ import annotations

from gradwire.collectives.choose import COLLECTIVES, choose, simulate
from gradwire.collectives.collective import Collective
from gradwire.collectives.gather_shards import gather_shards
from gradwire.collectives.reduce_scatter import reduce_scatter

__all__ = [
    "COLLECTIVES",
    "Collective",
    "choose",
    "gather_shards",
    "reduce_scatter",
    "simulate",
]
