"""What the collectives must give, said in one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import Codec, Key, ReducibleCodec, SummableCodec, TermCodec
from gradwire.collectives.choice import check, choose
from gradwire.collectives.terms import reduce_tree


def simulate(
    codec: Codec, vectors: Sequence[Tensor], key: Key, collective: str | None = None
) -> Tensor:
    """The mean that workers holding `vectors` agree on (float32, flat).

    Sums of `all_reduce` are taken in the order of ranks; a backend may add floats in another
    order and differ in the last bit.
    """
    collective = collective or choose(codec, len(vectors))
    check(codec, collective, len(vectors))
    vectors = [vector.detach().reshape(-1) for vector in vectors]
    keys = [key.of(rank=rank) for rank in range(len(vectors))]
    if isinstance(codec, TermCodec) and collective in ("all_reduce", "code_reduce"):
        return _simulate_terms(codec, vectors, keys)
    world = len(vectors)
    mean = torch.empty(vectors[0].numel(), dtype=torch.float32)
    payloads = [codec.encode(x, own, world=world) for x, own in zip(vectors, keys, strict=True)]
    codec.aggregate_into(payloads, mean, keys)
    if collective == "two_shot":
        again = key.of(rank=0, hop=1)
        mean = codec.decode(codec.encode(mean, again), mean.numel(), again)
    return mean


def _simulate_terms(codec: TermCodec, vectors: Sequence[Tensor], keys: Sequence[Key]) -> Tensor:
    world, numel = len(vectors), vectors[0].numel()
    statistics = torch.stack([codec.statistics(vector) for vector in vectors])
    shared = statistics.amax(0) if codec.statistics_op == "max" else statistics.sum(0)
    terms = []
    for vector, own in zip(vectors, keys, strict=True):
        terms.append(torch.empty(codec.term_nbytes(numel, world), dtype=torch.uint8))
        codec.encode_term(vector, terms[-1], own, 0, world=world, shared=shared)
    if isinstance(codec, SummableCodec):
        for term in terms[1:]:
            terms[0].view(codec.sum_dtype).add_(term.view(codec.sum_dtype))
    elif isinstance(codec, ReducibleCodec):
        reduce_tree(codec, terms, keys[0], 0)
    mean = torch.empty(numel, dtype=torch.float32)
    codec.decode_sum(terms[0], mean, keys[0], 0, world=world, shared=shared)
    return mean
