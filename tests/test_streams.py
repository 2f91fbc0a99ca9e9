"""Random streams: one for each attachment that is open, the same again in the same script."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.adapters import functional
from gradwire.reduction import streams
from test_ddp_use import Net, batch
from world import data

CODEC = gw.QSGD(bits=2)


def attached():
    ddp = DistributedDataParallel(Net())
    return ddp, gw.attach(ddp, CODEC)


def steps(ddp, rank, numbers):
    """The last mean of `first.weight`."""
    for step in numbers:
        ddp.zero_grad()
        ddp(batch(rank, step)).square().sum().backward()
    return ddp.module.first.weight.grad.clone()


def three_attachments(rank):
    """Two at once, of which one is carried over into a third, and one after they were closed."""
    (first, one), (second, two) = attached(), attached()
    means = [steps(first, rank, range(1)), steps(second, rank, range(1))]
    state = two.state_dict()
    means.append(steps(second, rank, [1]))
    for handle in (one, two):
        handle.close()
    third, three = attached()
    means.append(steps(third, rank, range(1)))
    three.load_state_dict(state)
    means.append(steps(third, rank, [1]))
    taken = streams.open_numbers()
    three.close()
    return means, (state["stream"], taken, streams.open_numbers())


def test_attachments_have_streams_of_their_own_which_a_state_carries_over(worlds):
    for (first, second, continued, later, resumed), numbers in worlds[2].run(three_attachments):
        assert not torch.equal(first, second)
        assert torch.equal(first, later)
        assert torch.equal(continued, resumed)
        assert numbers == (1, [1], [])


def in_overlapping_groups(rank):
    """Rank 0 is in two groups whose other members have made fewer attachments than it has."""
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [0, 2])]
    handles, found = [], []
    for group, ranks in zip(groups, ([0, 1], [0, 2]), strict=True):
        if rank in ranks:
            ddp = DistributedDataParallel(Net(), process_group=group)
            handles.append(gw.attach(ddp, gw.parse("dqsg")))
            found.append(steps(ddp, rank, range(2)))
    numbers = [handle.state_dict()["stream"] for handle in handles]
    for handle in handles:
        handle.close()
    return numbers, found


def test_ranks_agree_on_a_number_that_is_free_on_all_of_them(worlds):
    (both, mine), (first, one), (second, two) = worlds[3].run(in_overlapping_groups)
    assert (both, first, second) == ([0, 1], [0], [1])
    assert torch.equal(mine[0], one[0])  # the dithers too
    assert torch.equal(mine[1], two[0])


class Vector(nn.Module):
    """Its gradient is what it is given."""

    def __init__(self, numel):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))

    def forward(self, x):
        return (self.weight * x).sum()


def reduce_both_ways(rank):
    x = data(rank, 20_000)
    ddp = DistributedDataParallel(Vector(x.numel()))
    handle = gw.attach(ddp, CODEC)
    ddp(x).backward()
    handle.close()
    functional._steps.pop(dist.group.WORLD, None)
    return ddp.module.weight.grad, gw.all_reduce(x, CODEC), functional._number(dist.group.WORLD)


def test_all_reduce_draws_other_numbers_than_an_attachment(worlds):
    """Both in step 0 at seed 0, each as `simulate` says of its key."""
    vectors = [data(rank, 20_000) for rank in range(2)]
    for attached_mean, mean, number in worlds[2].run(reduce_both_ways):
        assert torch.equal(attached_mean, gw.simulate(CODEC, vectors, gw.Key(tensor=0)))
        assert torch.equal(mean, gw.simulate(CODEC, vectors, gw.Key(tensor=number)))
        assert not torch.equal(mean, attached_mean)


def number_of_pair(rank):
    return [functional._number(dist.new_group(ranks)) for ranks in ([0, 1], [1, 2], [0, 1])]


def test_members_name_the_stream_of_all_reduce(worlds):
    first, *others = worlds[3].run(number_of_pair)
    assert others == [first, first]
    assert first[0] == first[2] != first[1]
    assert min(first) >= 1 << 31


def test_streams_of_one_seed_are_those_of_splitmix64():
    """From its published C code, started at 1234567."""
    seeds = [streams.seed_of(1234567, number) for number in range(4)]
    assert seeds == [1234567, 6457827717110365317, 3203168211198807973, 9817491932198370423]


def refuse_seeds(rank, seed):
    ddp = DistributedDataParallel(Net())
    text = r"`seed` must be an integer in \[0, 2\*\*64\), got"
    with pytest.raises(ValueError, match=text):
        gw.attach(ddp, CODEC, seed=seed)
    x = data(rank, 10)
    with pytest.raises(ValueError, match=text):
        gw.all_reduce(x, CODEC, seed=seed)
    assert torch.equal(x, data(rank, 10))


@pytest.mark.parametrize("seed", [-1, 1 << 64, 0.5, True, "0"])
def test_bad_seeds_are_refused_before_anything_is_sent(worlds, seed):
    worlds[2].run(refuse_seeds, seed)
