"""When a step begins and ends, and what of a parameter is exchanged in it."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from test_ddp_use import Net, batch
from world import data

TWO_TYPES = (torch.float32, torch.float32, torch.bfloat16)


def same_batch_twice(rank):
    """Two steps with the same gradients in two buckets, nothing small: means, and steps counted."""
    ddp = DistributedDataParallel(Net(dtypes=TWO_TYPES), static_graph=True)
    handle = gw.attach(ddp, gw.QSGD(bits=2), min_numel=0)
    means = []
    for _ in range(2):
        ddp.zero_grad()
        ddp(batch(rank, 0)).square().sum().backward()
        means.append(ddp.module.first.weight.grad.clone())
    handle.close()
    return means, handle.stats().steps


def test_the_first_step_of_a_static_graph_is_counted_and_has_random_numbers_of_its_own(worlds):
    for (first, second), steps in worlds[2].run(same_batch_twice):
        assert steps == 2
        assert not torch.equal(first, second)


class Bucket:
    """One that DDP could hand to a hook."""

    def __init__(self, rank, parameters):
        self._parameters = list(parameters)
        numel = sum(p.numel() for p in self._parameters)
        self._buffer = data(rank, numel)

    def buffer(self):
        return self._buffer

    def parameters(self):
        return self._parameters


def give_up(rank):
    """The first bucket of a step that goes no further, then a whole step."""
    ddp = DistributedDataParallel(Net())
    handle = gw.attach(ddp, gw.Identity())
    hook = handle.hook()
    halves = [ddp.module.last.parameters(), [*ddp.module.first.parameters()]]
    one, two = list(halves[0]), [*halves[1], *ddp.module.maybe.parameters()]
    hook(None, Bucket(rank, one))
    futures = [hook(None, Bucket(rank, half)) for half in (one, two)]
    means = [future.wait() for future in futures]
    handle.close()
    return means, handle.stats().steps


def test_a_step_that_was_given_up_does_not_become_part_of_the_next(worlds):
    for means, steps in worlds[2].run(give_up):
        assert steps == 1
        for mean in means:
            numel = mean.numel()
            assert torch.equal(mean, data(0, numel) / 2 + data(1, numel) / 2)


class WithEmpty(nn.Module):
    """Big weights and a parameter with no elements, the only small one."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.big = nn.Linear(128, 128, bias=False)
        self.none = nn.Parameter(torch.empty(0, dtype=dtype))

    def forward(self, x):
        return self.big(x) + self.none.sum()


def train_with_empty(rank, dtype, options):
    ddp = DistributedDataParallel(WithEmpty(dtype))
    handle = gw.attach(ddp, gw.QSGD(bits=8), **options)
    rows = {row.parameter: row.cells() for row in handle.plan().rows}
    for step in range(2):
        ddp.zero_grad()
        ddp(batch(rank, step)).square().sum().backward()
    handle.close()
    return rows["none"], ddp.module.big.weight.grad, ddp.module.none.grad.shape


@pytest.mark.parametrize("options", [{}, {"min_numel": 0}, {"min_numel": 10**6}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_parameter_without_elements(worlds, dtype, options):
    """In the bucket of others or, where its type is another, in one of its own."""
    (row, mine, shape), (_, theirs, _) = worlds[2].run(train_with_empty, dtype, options)
    assert row[1] == "0"
    assert row[2].startswith("raw")
    assert torch.equal(mine, theirs)
    assert mine.abs().max() > 0
    assert shape == (0,)


def balance_of_unused(rank, options):
    """Odd steps leave `maybe` unused. What went into it, came out of it, and is owed of it.

    A mean that DDP throws away has not come out.
    """
    local = Net(optional=True)
    ddp = DistributedDataParallel(Net(optional=True), find_unused_parameters=True)
    handle = gw.attach(ddp, gw.QSGD(bits=2), error_feedback=True, **options)
    totals = [torch.zeros(128, 128), torch.zeros(128, 128)]
    for step in range(10):
        for module, total in zip((local, ddp), totals, strict=True):
            module.zero_grad()
            module(batch(rank, step), step).square().mean().backward()
            gradient = (module if module is local else module.module).maybe.weight.grad
            total += 0 if gradient is None else gradient
    owed = handle.state_dict()[f"rank{rank}"]["residuals"]["maybe.weight"]
    handle.close()
    return *totals, owed.view(128, 128)


@pytest.mark.parametrize("options", [{}, {"chunk": 5000}])
def test_parameters_that_no_worker_uses_keep_what_they_owe(worlds, options):
    (sent, got, owed), theirs = worlds[2].run(balance_of_unused, options)
    sent, owed = (sent + theirs[0]) / 2, (owed + theirs[2]) / 2
    assert (sent - got - owed).norm() < 1e-5 * sent.norm()
    assert owed.norm() > 0.01 * sent.norm()


def leave_early(rank):
    """Rank 1 has three batches less. What it owes when it is through, and at the end."""
    ddp = DistributedDataParallel(Net())
    handle = gw.attach(ddp, gw.QSGD(bits=2), error_feedback=True)
    with ddp.join():
        for step in range(5 - 3 * rank):
            ddp.zero_grad()
            ddp(batch(rank, step)).square().sum().backward()
        before = handle.state_dict()[f"rank{rank}"]["residuals"]
    after = handle.state_dict()[f"rank{rank}"]["residuals"]
    handle.close()
    return before, after, handle.stats().steps


def test_a_worker_that_is_through_keeps_what_it_owes(worlds):
    for before, after, steps in worlds[2].run(leave_early):
        assert steps == 5
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert all(residual.abs().max() > 0 for residual in after.values())


def counts_around_a_resume(rank):
    """Statistics of four steps, and of two after these were carried over."""
    found, state = [], None
    for steps in (4, 2):
        ddp = DistributedDataParallel(Net())
        handle = gw.attach(ddp, gw.QSGD(bits=4))
        if state is not None:
            handle.load_state_dict(state)
        for step in range(steps):
            ddp(batch(rank, step)).square().sum().backward()
        state = handle.state_dict()
        handle.close()
        found.append(handle.stats())
    return found, state["step"]


def test_statistics_after_a_resume_are_those_since_attach(worlds):
    for (before, after), step in worlds[2].run(counts_around_a_resume):
        assert (before.steps, after.steps, step) == (4, 2, 6)
        assert after.bytes_sent == before.bytes_sent / 2
        assert after.bytes_per_step == before.bytes_per_step > 0


def parameters_of_one_size(rank):
    ddp = DistributedDataParallel(
        nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(100, 99))
    )
    handle = gw.attach(ddp, gw.QSGD())
    handle.close()
    return handle.plan().rows, handle.stats().raw


def test_min_numel_values_are_enough(worlds):
    """10,000 are coded, 9,900 and 99 are not."""
    for rows, raw in worlds[2].run(parameters_of_one_size):
        assert [row.codec for row in rows] == ["qsgd:bits=4", "raw, small", "raw, small"]
        assert raw == ("1.weight", "1.bias")
