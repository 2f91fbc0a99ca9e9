"""What a worker owes: exactly what it had to send, less what its own message says of it.

Over real workers, against what one process works out from the codec alone: no mean, residual or
random stream depends on how parameters are cut into chunks, slices and shards.
"""

import itertools
from collections import Counter

import pytest
import torch

import gradwire as gw
from gradwire import collectives
from gradwire.link import Link
from gradwire.parts import Part, cut, whole
from world import data

KEY = gw.Key(seed=9, step=4)
NUMELS = {3: 700, 0: 9000, 7: 2500}  # by the numbers of the parameters, in the order of a bucket
CASES = [
    ("qsgd:bits=3", "all_gather"),
    ("dqsg", "all_gather"),
    ("dqsg", "two_shot"),
    ("qsgd:bits=4,wire=zstd", "two_shot"),
    ("fft", "all_gather"),
    ("bf16", "two_shot"),
    ("global-qsgd:bits=3,dither=subtractive", "all_reduce"),
    ("global-qsgd:bits=3,dither=subtractive", "code_reduce"),
    ("global-qsgd:dither=exponential", "code_reduce"),
]


def gradient(rank, number, dtype=torch.float32):
    return data(rank, NUMELS[number], seed=number).to(dtype)


def debt(rank, number):
    return data(rank, NUMELS[number], seed=100 + number) / 10


def bucket(rank, dtype=torch.float32):
    return [Part(gradient(rank, n, dtype), n, residual=debt(rank, n)) for n in NUMELS]


def reduce_all(rank, cases, dtype, chunks):
    """Means and residuals of every parameter, the bucket cut into so many chunks; the accounts."""
    results, accounts = {}, {}
    for spec, collective in cases:
        codec, parts, link = gw.parse(spec), bucket(rank, dtype), Link()
        for chunk in cut(whole(parts), codec.grain, chunks):
            collectives.COLLECTIVES[collective](link, codec, chunk, KEY)
        for part in parts:
            results[spec, collective, part.tensor] = part.values, part.residual
        accounts[spec, collective] = link.account
    return results, accounts


def owed(codec, collective, sources, key):
    """Each worker's vector less what its message says, by the codec alone; and its bytes."""
    world, rests, nbytes = len(sources), [x.clone() for x in sources], []
    if collective in ("all_gather", "two_shot"):
        for rank, (x, rest) in enumerate(zip(sources, rests, strict=True)):
            own = key.of(rank=rank)
            payload = codec.encode(x, own)
            codec.decode_into(payload, rest, own, weight=-1.0, accumulate=True)
            nbytes.append(payload.numel())
        return rests, nbytes
    statistics = torch.stack([codec.statistics(x) for x in sources])
    among = {"world": world, "shared": statistics.amax(0)}
    size, encode, subtract = {
        "all_reduce": lambda: (codec.term_nbytes, codec.encode_term, codec.subtract_term),
        "code_reduce": lambda: (codec.code_nbytes, codec.encode_code, codec.subtract_code),
    }[collective]()
    for rank, (x, rest) in enumerate(zip(sources, rests, strict=True)):
        message = torch.empty(size(x.numel(), world), dtype=torch.uint8)
        encode(x, message, key.of(rank=rank), 0, **among)
        subtract(message, rest, key.of(rank=rank), 0, **among)
        nbytes.append(message.numel() + statistics[rank].nbytes)
    return rests, nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [2, 3])
def test_means_and_residuals_are_those_of_the_codec_alone(worlds, size, dtype):
    for chunks in (1, 3):
        answers, accounts = zip(*worlds[size].run(reduce_all, CASES, dtype, chunks), strict=True)
        nbytes = Counter()
        for (spec, collective), number in itertools.product(CASES, NUMELS):
            codec, key = gw.parse(spec), KEY.of(tensor=number)
            sources = [debt(r, number) + gradient(r, number, dtype) for r in range(size)]
            mean = gw.simulate(codec, sources, key, collective).to(dtype)
            rests, sizes = owed(codec, collective, sources, key)
            for rank, (answer, rest) in enumerate(zip(answers, rests, strict=True)):
                nbytes[rank, spec, collective] += sizes[rank]
                got, residual = answer[spec, collective, number]
                assert torch.equal(got, mean), (spec, collective, number)
                assert torch.equal(residual, rest), (spec, collective, number)
            assert not torch.equal(rests[0], rests[1])  # a residual of the mean would be common
        for (rank, *case), total in nbytes.items():
            account = accounts[rank][tuple(case)]
            assert account.values == sum(NUMELS.values())
            if chunks == 1 and case[1] != "two_shot":  # pieces may be padded, each by itself
                assert account.message_bytes == total, case


def reduce_poisoned(rank, spec, collective, poison):
    """As above, uncut, with a value of rank 1 that is not finite in the parameter number 0."""
    codec, parts = gw.parse(spec), bucket(rank)
    if rank == 1:
        next(part for part in parts if part.tensor == 0).values[5000] = poison
    collectives.COLLECTIVES[collective](Link(), codec, whole(parts), KEY)
    return {part.tensor: (part.values, part.residual) for part in parts}


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("spec", "collective"),
    [("qsgd:bits=3", "two_shot"), ("bf16", "all_gather"), ("global-qsgd", "code_reduce")],
)
def test_what_is_owed_where_the_mean_is_not_finite_stays_as_it_was(
    worlds, spec, collective, poison
):
    """On all ranks alike, and nowhere else: `bf16` keeps an inf what it is."""
    answers = worlds[3].run(reduce_poisoned, spec, collective, poison)
    kept = [answer[0][1] == debt(rank, 0) for rank, answer in enumerate(answers)]
    for rank, answer in enumerate(answers):
        assert not answer[0][0][5000].isfinite()
        assert kept[rank][5000]
        assert torch.equal(kept[rank], kept[0])
        assert answer[0][1].isfinite().all()
        for number in (3, 7):
            key = KEY.of(tensor=number)
            sources = [debt(r, number) + gradient(r, number) for r in range(3)]
            rests, _ = owed(gw.parse(spec), collective, sources, key)
            assert torch.equal(answer[number][1], rests[rank])
