"""What the collectives must give, said in one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codec import AgreeingCodec, Codec, ReducibleCodec, SummableCodec
from gradwire.codecs import as_codec
from gradwire.collectives.choose import check, choose
from gradwire.key import Key
from gradwire.transport.link import add_in_order


def simulate(
    codec: Codec | str, vectors: Sequence[Tensor], key: Key, collective: str | None = None
) -> Tensor:
    """The mean that workers holding `vectors` agree on (float32, flat).

    Sums are taken in the order of ranks. In `all_reduce` a backend may add the floats of `none` in
    another order and differ in the last bit.
    """
    codec = as_codec(codec)
    collective = collective or choose(codec, len(vectors))
    check(codec, collective, len(vectors))
    vectors = [vector.detach().reshape(-1) for vector in vectors]
    keys = [key.of(rank=rank) for rank in range(len(vectors))]
    if isinstance(codec, AgreeingCodec) and collective in ("all_reduce", "code_reduce"):
        return _simulate_sum(codec, vectors, keys, collective)
    world = len(vectors)
    mean = torch.empty(vectors[0].numel(), dtype=torch.float32)
    payloads = [codec.encode(x, own, world=world) for x, own in zip(vectors, keys, strict=True)]
    codec.aggregate_into(payloads, mean, keys)
    if collective == "two_shot":
        again = key.of(rank=0, hop=1)
        mean = codec.decode(codec.encode(mean, again), mean.numel(), again)
    return mean


def _simulate_sum(
    codec: AgreeingCodec, vectors: Sequence[Tensor], keys: Sequence[Key], collective: str
) -> Tensor:
    world, numel = len(vectors), vectors[0].numel()
    statistics = torch.stack([codec.statistics(vector) for vector in vectors])
    shared = statistics.amax(0) if codec.statistics_op == "max" else add_in_order(statistics)
    mean = torch.empty(numel, dtype=torch.float32)
    if collective == "all_reduce":
        assert isinstance(codec, SummableCodec)
        total = torch.zeros(codec.term_nbytes(numel, world), dtype=torch.uint8)
        for vector, own in zip(vectors, keys, strict=True):
            term = torch.empty_like(total)
            codec.encode_term(vector, term, own, 0, world=world, shared=shared)
            total.view(codec.sum_dtype).add_(term.view(codec.sum_dtype))
        codec.decode_sum(total, mean, keys[0], 0, world=world, shared=shared)
        return mean
    assert isinstance(codec, ReducibleCodec)
    codes = torch.empty(world, codec.code_nbytes(numel, world), dtype=torch.uint8)
    for vector, code, own in zip(vectors, codes, keys, strict=True):
        codec.encode_code(vector, code, own, 0, world=world, shared=shared)
    total = torch.empty(codec.total_nbytes(numel, world), dtype=torch.uint8)
    codec.add_codes(codes, total, numel, keys[0], 0)
    codec.decode_total(total, mean, keys[0], 0, world=world, shared=shared)
    return mean
