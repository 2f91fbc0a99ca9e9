"""A step that the scaler skips for one parameter is undone for all."""

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.rollback import Rollback
from test_ddp_use import Net, batch

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
    undo = Rollback.undo
    if not undoes:
        Rollback.undo = lambda rollback: None
    try:
        run = Run(rank, gw.QSGD(bits=2))
        sent, got = sum(run.train_step() for _ in range(15))
        owed = run.state()[0]["first.weight"].view_as(sent)
        run.handle.close()
    finally:
        Rollback.undo = undo
    return sent, got, owed


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
