"""A short training with every codec, to be compared with the same one by the reference kernels.

A CPU must give the same losses and weights to the last bit. A GPU adds in another order, so some
values are rounded the other way, and losses drift apart a little.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire import kernels
from gradwire.codecs import REGISTRY
from gradwire.kernels import reference
from gradwire.lab.data import batches
from gradwire.lab.records import ignore
from gradwire.lab.remarks import remarks_to
from gradwire.lab.selftest.plan import Plan
from gradwire.lab.selftest.records import Begun, Checked, Failure, Say, Trained
from gradwire.lab.selftest.trouble import in_time, is_refusal, said_of
from gradwire.lab.tasks import TASKS

TASK = "mnist-fc"
STEPS, BATCH, SEED = 12, 16, 3
CLOSE = 1e-3
"""How far, of itself, the loss of a GPU may be from that of the CPU at any of these steps.

Weights that begin 10^-5 of themselves apart, which is more than sums in another order make of them,
take losses 10^-4 apart at most, with any codec.
"""


@dataclass(frozen=True)
class TrainingCheck:
    """What a worker does, together with the others; by the reference, always on the CPU."""

    plan: Plan
    by_reference: bool

    def __call__(self, say: Say) -> None:
        """Train with every codec."""
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        rank, by = dist.get_rank(), "reference/" if self.by_reference else ""
        device = Plan("cpu").own_device(rank) if self.by_reference else self.plan.own_device(rank)
        for spec in specs(self.plan):
            subject = f"training/{spec}"
            say(Begun(by + subject, rank))
            with in_time(subject, rank, say), _kernels(self.by_reference), remarks_to(ignore):
                say(_trained(subject, spec, rank, device))


def specs(plan: Plan) -> list[str]:
    """One a codec."""
    return [spec for spec in REGISTRY if plan.concerns(f"training/{spec}")]


@contextmanager
def _kernels(by_reference: bool) -> Iterator[None]:
    """In here codecs use the reference, if asked to."""
    usual = kernels.for_device
    if by_reference:
        kernels.for_device = lambda device: reference
    try:
        yield
    finally:
        kernels.for_device = usual


def _trained(subject: str, spec: str, rank: int, device: torch.device) -> Trained | Checked:
    try:
        model, losses = _train(spec, rank, device)
    except Exception as error:  # whatever it is, it is what is to be reported
        if is_refusal(error, gw.parse(spec), device):
            return Checked(subject, rank, missing=str(error))
        failure = Failure(subject, f"worker {rank}: {said_of(error)}")
        return Checked(subject, rank, 1, (failure,))
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return Trained(subject, rank, losses, digest.hexdigest()[:16])


def _train(spec: str, rank: int, device: torch.device) -> tuple[nn.Module, tuple[float, ...]]:
    task, losses = TASKS[TASK], []
    torch.manual_seed(SEED)
    model = task.model().to(device)
    ddp = DistributedDataParallel(model)
    handle = gw.attach(ddp, spec, seed=SEED)
    optimizer, schedule = task.optimize(ddp.parameters(), task.lr, STEPS)
    examples = batches(task.data(None).train, BATCH, SEED, rank, dist.get_world_size())
    for _, (inputs, targets) in zip(range(STEPS), examples, strict=False):
        optimizer.zero_grad()
        loss = task.loss(ddp(inputs.to(device)), targets.to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    handle.close()
    return model, tuple(losses)


def judge(expected: Sequence[Trained], got: Sequence[Trained], *, exact: bool) -> Iterator[Failure]:
    """What is wrong with trainings on the device; `expected` are those by the reference."""
    by = {(each.subject, each.rank): each for each in expected}
    first = {each.subject: each for each in reversed(got)}
    for each in got:
        want = by.get((each.subject, each.rank))
        what = _complaint(want, each, exact=exact) if want else None
        if each.weights != first[each.subject].weights:
            what = "its weights are not those of worker 0"
        if what:
            losses = {"losses": repr(each.losses), "expected": repr(want and want.losses)}
            yield Failure(each.subject, f"worker {each.rank}: {what}", losses)


def _complaint(want: Trained, got: Trained, *, exact: bool) -> str | None:
    for step, (a, b) in enumerate(zip(want.losses, got.losses, strict=True)):
        far = a != b if exact else not abs(a - b) <= CLOSE * abs(a)
        if far:
            return f"the loss of step {step} is {b!r}, with the reference kernels {a!r}"
    if exact and want.weights != got.weights:
        return "its weights are not those that the reference kernels give"
    return None
