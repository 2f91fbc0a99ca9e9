"""A step that the scaler skips for one parameter is undone for all."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.reduction.residuals import Residuals
from test_ddp_use import Net, batch
from test_fsdp import WIDTH
from world import data

BAD = 11
CODECS = [gw.QSGD(bits=2), gw.GradiVeQ(energy=0.3, warmup_steps=0, train_steps=8)]


class Run:
    """Training with a loss scale, where on rank 1 `maybe.weight` has an inf in step `BAD`."""

    def __init__(self, rank, codec, *, tells=True):
        self.rank, self.step = rank, 0
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
        self.ddp = DistributedDataParallel(Net())
        self.weight = self.ddp.module.first.weight
        self.local = Net()
        self.ddp.module.maybe.weight.register_hook(self._spoil)
        options = {"error_feedback": True, "scaler": self.scaler if tells else None}
        self.handle = gw.attach(self.ddp, codec, **options)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.0)

    def _spoil(self, gradient):
        return gradient * float("inf") if (self.rank, self.step) == (1, BAD) else gradient

    def train_step(self):
        """What went in and came out of `first.weight`, unscaled; zeros if the step was skipped."""
        scale = self.scaler.get_scale()
        for module in (self.local, self.ddp):
            module.zero_grad()
            self.scaler.scale(module(batch(self.rank, self.step)).square().mean()).backward()
        passed = torch.stack((self.local.first.weight.grad, self.weight.grad)) / scale
        assert passed.isfinite().all()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        return torch.zeros_like(passed) if self.scaler.get_scale() < scale else passed

    def state(self):
        """Residuals, unscaled, and what was learned."""
        state = self.handle.state_dict()
        residuals = state[f"rank{self.rank}"]["residuals"]
        return {n: r / state["scale"] for n, r in residuals.items()}, state["learned"]


def balance(rank, undoes):
    """Sums of what went in and came out of the steps that counted, and what is owed."""
    with undoing(undoes):
        run = Run(rank, gw.QSGD(bits=2))
        sent, got = sum(run.train_step() for _ in range(15))
        owed = run.state()[0]["first.weight"].view_as(sent)
        run.handle.close()
    return sent, got, owed


@contextmanager
def undoing(undoes):
    """The broken twin undoes nothing."""
    undo = Residuals.undo
    if not undoes:
        Residuals.undo = lambda residuals: None
    try:
        yield
    finally:
        Residuals.undo = undo


@pytest.mark.parametrize("undoes", [True, False])
def test_what_a_skipped_step_delivered_is_delivered_again(worlds, undoes):
    """What went in is what came out and what is owed; but not if nothing is undone."""
    (sent, got, owed), theirs = worlds[2].run(balance, undoes)
    sent, owed = (sent + theirs[0]) / 2, (owed + theirs[2]) / 2
    error = (sent - got - owed).norm() / sent.norm()
    assert (error < 1e-4) == undoes


def skip(rank, codec):
    """The state before the step that is skipped, after it, and after the next."""
    run = Run(rank, codec)
    for _ in range(BAD):
        run.train_step()
    states = [run.state()]
    for _ in range(2):
        run.train_step()
        states.append(run.state())
    run.handle.close()
    return states


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_skipped_step_leaves_everything_as_it_was(worlds, codec):
    for before, skipped, after in worlds[2].run(skip, codec):
        assert before[0].keys() >= {"first.weight", "maybe.weight"}
        for name, residual in before[0].items():
            assert torch.equal(residual, skipped[0][name])
        assert not torch.equal(before[0]["first.weight"], after[0]["first.weight"])
        assert before[1] == skipped[1]


def carry_over(rank):
    """Six steps, in which the scale grows, and what is owed then; the same in a new attachment."""
    old = Run(rank, gw.QSGD(bits=2))
    for _ in range(6):
        old.train_step()
    saved = old.handle.state_dict()
    new = Run(rank, gw.QSGD(bits=2))
    new.scaler.load_state_dict(old.scaler.state_dict())
    new.handle.load_state_dict(saved)
    states = [run.state()[0] for run in (old, new)]
    scales = [saved["scale"], new.handle.state_dict()["scale"]]
    for run in (old, new):
        run.handle.close()
    return states, scales


def test_the_scale_is_restored_with_the_residuals(worlds):
    for (before, after), scales in worlds[2].run(carry_over):
        assert scales == [2.0**11] * 2
        assert before.keys() == after.keys() >= {"first.weight"}
        for name, residual in before.items():
            assert residual.abs().max() > 0
            assert torch.equal(residual, after[name])


def count(rank):
    told, untold = (Run(rank, gw.QSGD(bits=2), tells=tells) for tells in (True, False))
    for _ in range(2):
        told.train_step()
        untold.train_step()
    found = [run.handle.stats().residual_bytes for run in (told, untold)]
    told.handle.close()
    untold.handle.close()
    return found


def test_the_copy_is_counted(worlds):
    for told, untold in worlds[2].run(count):
        assert told == 2 * untold > 0


class Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, factor):
        ctx.factor = factor
        return weight.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Spoiled(nn.Linear):
    """The gradient of its weight, and no other, is multiplied by `factor`."""

    factor = 1.0

    def forward(self, x):
        return nn.functional.linear(x, Spoil.apply(self.weight, self.factor), self.bias)


def skip_sharded(rank, undoes):
    """Residuals, unscaled, before a step that rank 1 spoils, after it, and after the next."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), Spoiled(WIDTH, WIDTH), nn.Linear(WIDTH, 3)]
    module = fully_shard(nn.Sequential(*map(fully_shard, layers)))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    handle = gw.attach(module, gw.QSGD(bits=2), error_feedback=True, scaler=scaler)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    found = []
    with undoing(undoes):
        for step in range(4):
            layers[1].factor = float("inf") if (rank, step) == (1, 2) else 1.0
            module.zero_grad()
            x = data(rank, 16 * WIDTH, seed=step).view(16, WIDTH)
            scaler.scale(module(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            state = handle.state_dict()
            residuals = state[f"rank{rank}"]["residuals"]
            found.append({n: r / state["scale"] for n, r in residuals.items()})
    return scaler.get_scale(), found[1:]


@pytest.mark.parametrize("undoes", [True, False])
def test_fsdp_undoes_a_skipped_step_too(worlds, undoes):
    for scale, (before, skipped, after) in worlds[2].run(skip_sharded, undoes):
        assert scale == 2.0**9
        assert torch.equal(before["within/0"], skipped["within/0"]) == undoes
        assert torch.equal(before["within/1"], skipped["within/1"]) or not undoes
        assert not torch.equal(before["within/0"], after["within/0"])
