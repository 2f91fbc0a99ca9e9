"""What a worker owes: exactly what it had to send, less what its own message says of it.

Over real workers, against what one process works out from the codec alone: no mean, residual or
random stream depends on how parameters are cut into chunks, slices and shards.
"""

import itertools
from collections import Counter

import pytest
import torch

import gradwire as gw
from gradwire.collectives import COLLECTIVES, reduce_scatter
from gradwire.collectives.parts import Part, cut, whole
from gradwire.collectives.relay import deal
from gradwire.key import Hop
from gradwire.reduction.route import Route
from gradwire.transport.link import Link
from laws import adder_of
from world import data

KEY = gw.Key(seed=9, step=4)
NUMELS = {3: 700, 0: 9000, 7: 2500}  # by the numbers of the parameters, in the order of a bucket
SHARES = {3: 1.0, 0: 0.3, 7: 1.0}  # of what is owed of them
CASES = [
    ("qsgd:bits=3", "all_gather"),
    ("dqsg", "all_gather"),
    ("dqsg", "two_shot"),
    ("qsgd:bits=4,wire=zstd", "two_shot"),
    ("fft", "all_gather"),
    ("fft", "relay"),
    ("topk", "all_gather"),
    ("topk", "relay"),
    ("bf16", "two_shot"),
    ("global-qsgd:bits=3,dither=subtractive", "all_reduce"),
    ("global-qsgd:bits=3,dither=subtractive", "code_reduce"),
    ("global-qsgd:dither=exponential", "code_reduce"),
]


def gradient(rank, number, dtype=torch.float32):
    return data(rank, NUMELS[number], seed=number).to(dtype)


def debt(rank, number):
    return data(rank, NUMELS[number], seed=100 + number) / 10


def bucket(rank, codec, dtype=torch.float32):
    return [
        Part(gradient(rank, n, dtype), n, codec, residual=debt(rank, n), share=SHARES[n])
        for n in NUMELS
    ]


def reduce_all(rank, cases, dtype, chunks):
    """Means and residuals of every parameter, the bucket cut into so many chunks; the accounts."""
    results, accounts = {}, {}
    for spec, collective in cases:
        parts, link = bucket(rank, gw.parse(spec), dtype), Link()
        for chunk in cut(whole(parts), chunks):
            COLLECTIVES[collective].reduce(link, chunk, KEY)
        for part in parts:
            results[spec, collective, part.tensor] = part.values, part.residual
        accounts[spec, collective] = link.account
    return results, accounts


def owed(codec, collective, sources, key):
    """Each worker's vector less what its message says, by the codec alone; and its bytes."""
    world, rests, nbytes = len(sources), [x.clone() for x in sources], []
    if collective == "relay":
        return owed_after_relay(codec, rests, key)
    if collective in ("all_gather", "two_shot"):
        for rank, (x, rest) in enumerate(zip(sources, rests, strict=True)):
            own = key.of(rank=rank)
            payload = codec.encode(x, own)
            codec.decode_into(payload, rest, own, weight=-1.0, accumulate=True)
            nbytes.append(payload.numel())
        return rests, nbytes
    statistics = torch.stack([codec.statistics(x) for x in sources])
    adder = adder_of(codec, collective, world, statistics.amax(0))
    for rank, (x, rest) in enumerate(zip(sources, rests, strict=True)):
        message = torch.empty(adder.code_nbytes(x.numel()), dtype=torch.uint8)
        adder.encode(x, message, key.of(rank=rank))
        adder.subtract(message, rest, key.of(rank=rank))
        nbytes.append(message.numel() + statistics[rank].nbytes)
    return rests, nbytes


def owed_after_relay(codec, sources, key):
    """The same where owners add their own as it is, and owe what they do not say of the mean."""
    world, nbytes = len(sources), [0] * len(sources)
    shards = deal(whole([Part(sources[0], key.tensor, codec)]), world)
    for owner, piece in ((owner, piece) for owner, shard in enumerate(shards) for piece in shard):
        own, offset = [x[piece.start : piece.stop] for x in sources], piece.start
        room = torch.empty(codec.max_nbytes(piece.numel), dtype=torch.uint8)
        payloads, keys = [], [key.of(rank=rank) for rank in range(world) if rank != owner]
        for at in keys:
            payloads.append(room[: codec.encode_into(own[at.rank], room, at, offset)].clone())
            codec.decode_into(payloads[-1], own[at.rank], at, offset, weight=-1.0, accumulate=True)
            nbytes[at.rank] += payloads[-1].numel()
        again = key.of(rank=0, hop=Hop.MEAN)
        nbytes[owner] += codec.relay(payloads, own[owner], room, keys, again, offset)
    return sources, nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [2, 3])
def test_means_and_residuals_are_those_of_the_codec_alone(worlds, size, dtype):
    for chunks in (1, 3):
        answers, accounts = zip(*worlds[size].run(reduce_all, CASES, dtype, chunks), strict=True)
        nbytes = Counter()
        for (spec, collective), number in itertools.product(CASES, NUMELS):
            codec, key = gw.parse(spec), KEY.of(tensor=number)
            debts, share = [debt(r, number) for r in range(size)], SHARES[number]
            sources = [share * owes + gradient(r, number, dtype) for r, owes in enumerate(debts)]
            mean = gw.simulate(codec, sources, key, collective).to(dtype)
            rests, sizes = owed(codec, collective, sources, key)
            if share < 1:
                rests = [rest + (1 - share) * x for rest, x in zip(rests, debts, strict=True)]
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


def reduce_poisoned(rank, spec, collective, poison, spoiler):
    """As above, uncut, with a value of one rank that is not finite in the parameter number 0."""
    parts = bucket(rank, gw.parse(spec))
    if rank == spoiler:
        next(part for part in parts if part.tensor == 0).values[5000] = poison
    COLLECTIVES[collective].reduce(Link(), whole(parts), KEY)
    return {part.tensor: (part.values, part.residual) for part in parts}


@pytest.mark.parametrize("poison", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    ("spec", "collective"),
    [
        ("qsgd:bits=3", "two_shot"),
        ("bf16", "all_gather"),
        ("global-qsgd", "code_reduce"),
        ("fft", "relay"),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_what_is_owed_where_the_mean_is_not_finite_stays_as_it_was(
    worlds, size, spec, collective, poison
):
    """On all ranks alike, and nowhere else: `bf16` keeps an inf what it is."""
    for spoiler in range(2):
        answers = worlds[size].run(reduce_poisoned, spec, collective, poison, spoiler)
        kept = [answer[0][1] == debt(rank, 0) for rank, answer in enumerate(answers)]
        for rank, answer in enumerate(answers):
            assert not answer[0][0][5000].isfinite()
            assert kept[rank][5000]
            assert torch.equal(kept[rank], kept[0])
            assert answer[0][1].isfinite().all()
            for number in (3, 7):
                key = KEY.of(tensor=number)
                sources = [debt(r, number) + gradient(r, number) for r in range(size)]
                rests, _ = owed(gw.parse(spec), collective, sources, key)
                assert torch.equal(answer[number][1], rests[rank])


def overflow(rank):
    """A mean of 70,000, which float16 does not hold; and one of 50,000, which it does."""
    kept = []
    for owes in (2e4, 0.0):
        values, owed = torch.full((600,), 5e4).half(), torch.full((600,), owes)
        part = Part(values, 0, gw.parse("bf16"), residual=owed)
        COLLECTIVES["all_gather"].reduce(Link(), whole([part]), KEY)
        kept.append((float(part.values[0]), part.residual.tolist() == [owes] * 600))
    return kept


def test_a_mean_that_its_type_does_not_hold_is_not_finite(worlds):
    for (large, stays), (small, stays_too) in worlds[2].run(overflow):
        assert (large, stays) == (float("inf"), True)
        assert (small, stays_too) == (49_920.0, False)  # as bfloat16 has it


def scatter_all(rank, specs, spoiler):
    """Residuals of a shard for every rank; those of the last shard are spoilt by one rank."""
    link, results = Link(), {}
    for spec in specs:
        codec, owed = gw.parse(spec), [data(rank, 900, seed=9 + i) for i in range(link.size)]
        shards = [Part(data(rank, 900, seed=i), i, codec, residual=r) for i, r in enumerate(owed)]
        if rank == spoiler:
            shards[-1].values[100] = torch.inf
        reduce_scatter(link, shards, KEY)
        results[spec] = [part.residual for part in shards]
    return results


@pytest.mark.parametrize("spoiler", [None, 0, 1])
def test_shards_are_settled_alike_by_those_who_do_not_own_them(worlds, spoiler):
    specs = ["dqsg", "qsgd:bits=3"]
    for rank, answer in enumerate(worlds[3].run(scatter_all, specs, spoiler)):
        for spec, i in itertools.product(specs, range(3)):
            debts = [data(r, 900, seed=9 + i) for r in range(3)]
            sources = [owes + data(r, 900, seed=i) for r, owes in enumerate(debts)]
            rests, _ = owed(gw.parse(spec), "all_gather", sources, KEY.of(tensor=i))
            spoilt = spoiler is not None and i == 2
            assert torch.equal(answer[spec][i], debts[rank] if spoilt else rests[rank]), (spec, i)


def nested_rates(rank, collective):
    """The rates of two parameters, of which workers agree about one."""
    world, link = torch.distributed.get_world_size(), Link()
    common = {n: data(99, NUMELS[n], seed=n) for n in (0, 7)}
    codec = gw.NDQSG(levels=3, block=64, max_failures=0.005, wire="packed")
    parts = [Part(common[n] + (n / 7) * data(rank, NUMELS[n], seed=n), n, codec) for n in (0, 7)]
    sources = {part.tensor: part.values.clone() for part in parts}
    shards = cut(whole(parts), world) if collective == "two_shot" else [whole(parts)]
    route = Route.of(codec, world, collective=collective, speaks=False)
    route.adaptation.finish(parts, route.reduce(link, whole(parts), KEY))
    rates = {n: state.failure_rate for n, state in route.adaptation.states.items()}
    return sources, rates, [(p.part.tensor, p.start, p.stop) for shard in shards for p in shard]


@pytest.mark.parametrize("collective", ["all_gather", "two_shot"])
def test_the_failure_rate_of_a_parameter_is_that_of_its_values(worlds, collective):
    """Weighted by how many there are in each slice, and the same on all ranks."""
    codec, answers = (
        gw.NDQSG(levels=3, block=64, max_failures=0.005, wire="packed").plain,
        worlds[3].run(nested_rates, collective),
    )
    _, rates, slices = answers[0]
    assert all(answer[1] == rates for answer in answers)
    for number in (0, 7):
        keys, wrong = [KEY.of(tensor=number, rank=rank) for rank in range(3)], 0.0
        own = [(start, stop) for tensor, start, stop in slices if tensor == number]
        for start, stop in own:
            payloads = []
            for (sources, *_), key in zip(answers, keys, strict=True):
                room = torch.empty(codec.max_nbytes(stop - start), dtype=torch.uint8)
                x = sources[number][start:stop]
                payloads.append(room[: codec.encode_into(x, room, key, start)])
            (rate,) = codec.mean_into(payloads, torch.empty(stop - start), keys, start)
            wrong += rate * (stop - start) / NUMELS[number]
        assert rates[number] == pytest.approx(wrong, abs=2.0**-30)
    assert len(slices) == (2 if collective == "all_gather" else 4)
    assert rates[0] < 0.01 < rates[7]


def relayed(rank, spec, steps):
    """The means of some steps, and what is owed after them."""
    link, means = Link(), []
    owes = {n: torch.zeros(NUMELS[n]) for n in NUMELS}
    for step in range(steps):
        values = {n: data(rank, NUMELS[n], seed=n + 50 * step) for n in NUMELS}
        if step == 2 and rank == 1:
            values[0][::8] = torch.inf
        idle = step == 3 and rank == 0  # of a worker without a gradient nothing is due
        for n in NUMELS:
            values[n] *= not idle
        parts = [
            Part(values[n], n, gw.parse(spec), residual=owes[n], share=float(not idle))
            for n in NUMELS
        ]
        for chunk in cut(whole(parts), 1 + step % 3):
            COLLECTIVES["relay"].reduce(link, chunk, KEY.of(step=step))
        means.append(values)
    return means, owes


@pytest.mark.parametrize("spec", ["fft:drop=0.9", "fft:drop=0.8,domain=auto,block=64", "topk"])
@pytest.mark.parametrize("size", [3, 4])
def test_what_is_relayed_and_what_is_owed_is_all_there_was(worlds, size, spec):
    """Over steps with other chunks each, one that is not finite, of which nothing is owed, and one
    in which a worker has no gradient."""
    answers = worlds[size].run(relayed, spec, 5)
    for number, numel in NUMELS.items():
        said = torch.zeros(numel, dtype=torch.float64)
        for step, (means, *others) in enumerate(zip(*(means for means, _ in answers), strict=True)):
            assert all(torch.equal(means[number].isnan(), o[number].isnan()) for o in others)
            finite = means[number].isfinite()
            busy = range(step == 3, size)
            gradients = sum(data(r, numel, seed=number + 50 * step).double() for r in busy)
            said += torch.where(finite, size * means[number].double() - gradients, 0.0)
            assert finite.all() == (number != 0 or step != 2)
        owes = sum(owed[number].double() for _, owed in answers)
        assert float((said + owes).abs().max()) < 2e-4
        assert float(owes.abs().max()) > 1
