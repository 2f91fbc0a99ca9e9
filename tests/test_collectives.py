"""Collectives over real gloo workers: all ranks agree bit for bit, and with `simulate`."""

import functools
import itertools

import pytest
import torch
import torch.distributed as dist

import gradwire as gw
from gradwire.adaptive import AffineCodec
from gradwire.codecs.powersgd.low_rank import LowRank
from gradwire.collectives import COLLECTIVES, choose
from gradwire.collectives.parts import Part, cut, whole
from gradwire.reduction.reducer import Reducer
from gradwire.reduction.route import Route
from gradwire.reduction.small import SmallParts
from gradwire.transport.device import HOST
from gradwire.transport.link import Link
from laws import EXAMPLES, is_summed_by_network, reduce_now, steps_of
from world import data

SIZES = (2, 3, 4)
KEY = gw.Key(seed=9, step=4, tensor=0)


def vectors(world, numel, codec, collective, seed=0):
    """Different data on every rank. Where floats are summed by the network, whose order is its
    own, only one rank is nonzero at a time, so that any order gives the same bits."""
    rows = [data(rank, numel, seed) for rank in range(world)]
    if isinstance(codec, gw.Identity) and collective == "all_reduce":
        turn = torch.arange(numel) % world
        rows = [torch.where(turn == rank, row, 0.0) for rank, row in enumerate(rows)]
    return rows


def carriers(codec):
    """The collectives that may carry `codec`."""
    options = ["all_gather", "two_shot", *["relay"] * codec.feeds_back]
    options += ["all_reduce"] if is_summed_by_network(codec) else []
    options += ["code_reduce"] if isinstance(codec, gw.SummableCodec) else []
    options += ["image_reduce"] if isinstance(codec, AffineCodec) else []
    return [*options, "low_rank"] if isinstance(codec, LowRank) else options


def reduce_all(rank, specs, numels):
    """Every codec, length and collective; the results."""
    results = {}
    for spec, numel in itertools.product(specs, numels):
        for i, codec in enumerate(steps_of(spec, numel)):
            for collective in carriers(codec):
                x = vectors(dist.get_world_size(), numel, codec, collective)[rank].clone()
                parts = [Part(x, KEY.tensor, codec)]
                COLLECTIVES[collective].reduce(Link(), whole(parts), KEY)
                results[spec, i, numel, collective] = x
    return results


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_ranks_equal_each_other_and_simulate(worlds, size):
    answers = worlds[size].run(reduce_all, EXAMPLES, (1, 600, 30_000))
    assert {collective for *_, collective in answers[0]} == set(COLLECTIVES)
    for (spec, i, numel, collective), result in answers[0].items():
        for rank, answer in enumerate(answers):
            assert torch.equal(answer[spec, i, numel, collective], result), (spec, numel, rank)
        codec = steps_of(spec, numel)[i]
        expected = gw.simulate(codec, vectors(size, numel, codec, collective), KEY, collective)
        assert torch.equal(result, expected), (spec, numel, collective)


def reduce_mean(rank, spec, numel, dtype):
    return gw.all_reduce(data(rank, numel).to(dtype), gw.parse(spec))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_all_reduce_is_near_the_mean_in_the_type_given(worlds, size, dtype):
    for spec, tolerance in (("none", 0.02), ("bf16", 0.05), ("qsgd:bits=8", 0.1)):
        first, *others = worlds[size].run(reduce_mean, spec, 20_000, dtype)
        assert first.dtype == dtype
        assert all(torch.equal(first, other) for other in others)
        mean = torch.stack([data(rank, 20_000) for rank in range(size)]).mean(0)
        assert (first.float() - mean).abs().max() < tolerance


def two_calls(rank):
    x = data(rank, 2000)
    return gw.all_reduce(x.clone(), gw.QSGD()), gw.all_reduce(x.clone(), gw.QSGD())


def test_calls_draw_fresh_random_bits(worlds):
    first, second = worlds[2].run(two_calls)[0]
    assert not torch.equal(first, second)


def reduce_grouped(rank, codec, order, together):
    """Three parameters, in one bucket or in three, in this order."""
    numels = enumerate((700, 9000, 2500))
    parts = {i: Part(data(rank, numel, seed=i), i, codec) for i, numel in numels}
    link = Link()
    groups = [[parts[i] for i in order]] if together else [[parts[i]] for i in order]
    for group in groups:
        COLLECTIVES["two_shot"].reduce(link, whole(group), KEY)
    return [parts[i].values for i in range(3)]


@pytest.mark.parametrize("spec", ["qsgd", "qsgd:bits=4,wire=zstd", "qsgd:bits=2,block=none"])
def test_the_mean_does_not_depend_on_buckets_or_shards(worlds, spec):
    codec = gw.parse(spec)
    expected = worlds[3].run(reduce_grouped, codec, (0, 1, 2), True)[0]
    for order, together in (((2, 1, 0), True), ((1, 0, 2), False)):
        got = worlds[3].run(reduce_grouped, codec, order, together)[0]
        assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def count_bytes(rank, spec, collective, numel):
    link = Link()
    reducer = Reducer(link, gw.parse(spec), collective=collective, min_numel=0)
    reduce_now(reducer, data(rank, numel))
    return link.account.bytes_sent, link.account.message_bytes, link.account.values


@pytest.mark.parametrize("size", SIZES)
def test_bytes_are_those_of_the_buffers(worlds, size):
    numel = 512 * 12 * 8  # even shards for any of the worlds
    message = gw.QSGD(bits=4).max_nbytes(numel)
    expected = {
        ("none", "all_reduce"): 2 * (size - 1) * 4 * numel // size,
        ("none", "code_reduce"): 2 * (size - 1) * 4 * numel // size,
        ("fp16", "code_reduce"): 2 * (size - 1) * 2 * numel // size,
        ("qsgd:bits=4", "all_gather"): (size - 1) * message,
        ("qsgd:bits=4", "two_shot"): 2 * (size - 1) * message // size,
    }
    for (spec, collective), nbytes in expected.items():
        for sent, own, values in worlds[size].run(count_bytes, spec, collective, numel):
            assert sent == nbytes, (spec, collective)
            assert values == numel
            assert own == gw.parse(spec).max_nbytes(numel)


def reduce_with_residual(rank, spec, collective, steps):
    """Sums of what went in and of what came out, and the residual at the end."""
    link = Link()
    reducer = Reducer(link, gw.parse(spec), collective=collective, error_feedback=True, min_numel=0)
    sent, got = torch.zeros(3000), torch.zeros(3000)
    for step in range(steps):
        x = vectors(link.size, 3000, reducer.codec, collective, seed=step)[rank].clone()
        sent += x
        reduce_now(reducer, x)
        got += x
    return sent, got, reducer.residuals.of("0", 3000)


@pytest.mark.parametrize(
    ("spec", "collective", "size"),
    [
        ("fp16", "code_reduce", 2),  # among more the mean is rounded again, see test_cast.py
        ("bf16", "code_reduce", 2),
        ("bf16", "all_gather", 3),
        ("none", "code_reduce", 3),
        ("qsgd:bits=3", "all_gather", 2),
        ("qsgd:bits=3", "all_gather", 3),
        ("global-qsgd:bits=3", "all_reduce", 3),
        ("global-qsgd:bits=3", "code_reduce", 3),
        ("global-qsgd:bits=3,dither=subtractive", "all_reduce", 2),
        ("global-qsgd:bits=3,dither=subtractive", "all_reduce", 3),
    ],
)
def test_what_was_lost_is_in_the_residuals(worlds, spec, collective, size):
    """The sum of the means plus the mean residual is the mean of the sums: nothing is lost."""
    answers = worlds[size].run(reduce_with_residual, spec, collective, 10)
    sent = torch.stack([answer[0] for answer in answers]).mean(0)
    residual = torch.stack([answer[2] for answer in answers]).mean(0)
    got = answers[0][1]
    torch.testing.assert_close(got + residual, sent, rtol=0, atol=1e-5)


def residual_of_one_step(rank, spec, collective):
    """Of the first step, in which nothing is owed yet."""
    reducer = Reducer(
        Link(),
        gw.parse(spec),
        collective=collective,
        error_feedback=True,
        min_numel=0,
        seed=KEY.seed,
    )
    reducer.step = KEY.step
    reduce_now(reducer, data(rank, 3000))
    return reducer.residuals.of("0", 3000)


@pytest.mark.parametrize("collective", ["all_gather", "two_shot"])
def test_a_residual_is_what_the_own_payload_lost(worlds, collective):
    """Not what was lost of the mean, which `two_shot` encodes a second time."""
    codec = gw.QSGD(bits=3)
    for rank, residual in enumerate(worlds[3].run(residual_of_one_step, "qsgd:bits=3", collective)):
        own, x = KEY.of(rank=rank), data(rank, 3000)
        assert torch.equal(residual, x - codec.decode(codec.encode(x, own), 3000, own))


def test_a_second_rounding_that_nobody_feeds_back_is_refused():
    for codec in (gw.Cast("bf16"), gw.FFTSparse(drop=0.9)):
        with pytest.raises(ValueError, match=r"two_shot encodes the mean once more.*`relay`"):
            Route.of(codec, 4, collective="two_shot")
        assert Route.of(codec, 4, collective="all_gather").error_feedback
        assert not Route.of(codec, 4, collective="two_shot", error_feedback=False).error_feedback
    assert Route.of(gw.QSGD(), 4, collective="two_shot", error_feedback=True).error_feedback


def sum_rows(rank, numel):
    link, x = Link(), data(rank, numel).double() * 10.0 ** data(rank, numel, seed=1)
    single = x.float()
    link.sum_in_order(x)
    link.sum_in_order(single)
    by_owners = data(rank, numel)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradwire.transport.link._FEW", 0)
        link.sum_in_order(by_owners)
    return x, single, by_owners


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_in_order_are_those_of_a_loop(worlds, size):
    for numel in (1, 5, 1000):
        expected = [torch.zeros(numel).double(), torch.zeros(numel), torch.zeros(numel)]
        for rank in range(size):
            x = data(rank, numel).double() * 10.0 ** data(rank, numel, seed=1)
            terms = x, x.float(), data(rank, numel)
            expected = [total + term for total, term in zip(expected, terms, strict=True)]
        for answer in worlds[size].run(sum_rows, numel):
            assert all(torch.equal(a, b) for a, b in zip(answer, expected, strict=True))


SMALL = [(1000 + 37 * i, dtype) for i, dtype in enumerate([torch.float32, torch.bfloat16] * 3)]


def reduce_small(rank, order):
    """Six parameters that travel raw, seen in this order, and the bytes that were sent."""
    parts = [Part(data(rank, n, seed=i).to(d), i) for i, (n, d) in enumerate(SMALL)]
    small, link = SmallParts(), Link()
    for i in order:
        small.add([parts[i]], HOST.take(parts[i].values))
    small.job()(link)
    return [part.values for part in parts], link.account.bytes_sent


@pytest.mark.parametrize("size", [2, 3, 4])
def test_small_parts_are_added_in_the_order_of_ranks_wherever_they_lie(worlds, size):
    """A ring adds in an order that depends on the place in the message."""
    expected = []
    for i, (numel, dtype) in enumerate(SMALL):
        rows = [data(rank, numel, seed=i).to(dtype) * (1 / size) for rank in range(size)]
        expected.append(functools.reduce(torch.add, rows))
    nbytes, sent = sum(values.nbytes for values in expected), []
    for order in (range(6), (4, 1, 0, 5, 3, 2)):
        for means, own in worlds[size].run(reduce_small, order):
            assert all(torch.equal(a, b) for a, b in zip(means, expected, strict=True))
            sent.append(own)
    assert sum(sent) == 2 * 2 * (size - 1) * nbytes  # those of a ring
    assert max(sent) - min(sent) <= 8 * size


def test_shards_are_even_and_cut_at_the_grain():
    numels = enumerate((5000, 20_000, 777, 40_000))
    parts = [Part(torch.zeros(numel), i, gw.QSGD()) for i, numel in numels]
    for ranks in (1, 2, 3, 4, 7):
        shards = cut(whole(parts), ranks)
        sizes = [sum(piece.numel for piece in shard) for shard in shards]
        assert sum(sizes) == 65_777
        assert max(sizes) - min(sizes) <= 2 * 512
        pieces = [piece for shard in shards for piece in shard]
        assert all(piece.start % 512 == 0 for piece in pieces)
        for part in parts:
            spans = [(p.start, p.stop) for p in pieces if p.part is part]
            assert spans[0][0] == 0
            assert spans[-1][1] == part.values.numel()
            assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))


def test_what_may_not_be_cut_stays_whole():
    numels = enumerate((100, 10_000, 300, 200))
    parts = [Part(torch.zeros(numel), i, gw.QSGD(block=None)) for i, numel in numels]
    pieces = [piece for shard in cut(whole(parts), 3) for piece in shard]
    assert [piece.numel for piece in pieces] == [100, 10_000, 300, 200]


def test_payloads_that_cannot_be_summed_are_refused():
    with pytest.raises(TypeError, match="cannot be summed by all_reduce; use `two_shot`"):
        choose(gw.QSGD(), 4, "all_reduce")
    with pytest.raises(TypeError, match="cannot be summed by all_reduce; use `code_reduce`"):
        choose(gw.GlobalQSGD(dither="exponential"), 4, "all_reduce")
    with pytest.raises(TypeError, match="cannot be summed by all_reduce; use `code_reduce`, or a"):
        choose(gw.Cast("fp16"), 4, "all_reduce")
    with pytest.raises(TypeError, match="cannot be added as codes; use `two_shot`, or a codec"):
        choose(gw.QSGD(), 4, "code_reduce")
    for collective in ("all_reduce", "code_reduce"):
        assert choose(gw.GlobalQSGD(), 64, collective).name == collective
    with pytest.raises(ValueError, match="must be one of all_reduce, all_gather, two_shot"):
        choose(gw.QSGD(), 4, "ring")
    with pytest.raises(TypeError, match="is no affine map; leave `collective` out"):
        choose(gw.QSGD(), 4, "image_reduce")
