"""Every codec over every collective that takes it: what `gw.all_reduce` gives is the mean.

The mean is worked out on the CPU, in one process (`gw.simulate`). Every worker compares what it got
with that, to the last bit, so workers are equal to each other, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

import gradwire as gw
from gradwire.adapters.functional import next_key
from gradwire.adaptive import AdaptiveCodec
from gradwire.codecs import REGISTRY
from gradwire.collectives import COLLECTIVES
from gradwire.lab.selftest.differences import difference
from gradwire.lab.selftest.plan import Plan
from gradwire.lab.selftest.records import Begun, Checked, Failure, Say
from gradwire.lab.selftest.trouble import in_time, is_refusal, said_of
from gradwire.lab.steps import steps_of

NUMELS = (1, 777, 40_003)
SEED = 11


@dataclass(frozen=True)
class Case:
    """One call of `gw.all_reduce`; `collective` is None where a codec chooses for itself."""

    name: str
    codec: gw.Codec
    collective: str | None
    numel: int

    def vectors(self, world: int) -> list[Tensor]:
        """Other values on every rank.

        Where floats are summed by the network, in an order of its own, one rank at a time is not
        zero, so that any order gives the same bits.
        """
        draw = torch.Generator().manual_seed(self.numel)
        rows = torch.randn(world, self.numel, generator=draw)
        if isinstance(self.codec, gw.Identity) and self.collective == "all_reduce":
            turn = torch.arange(self.numel) % world
            rows *= turn == torch.arange(world).view(-1, 1)
        return list(rows)


@dataclass(frozen=True)
class CollectiveCheck:
    """What a worker does, together with the others."""

    plan: Plan

    def __call__(self, say: Say) -> None:
        """Check all codecs."""
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # some codecs doubt that they are of use here
        rank = dist.get_rank()
        device = self.plan.own_device(rank)
        for spec in specs(self.plan):
            subject = f"collectives/{spec}"
            say(Begun(subject, rank))
            with in_time(subject, rank, say):
                checked = self._checked(subject, spec, device)
            say(checked)

    def _checked(self, subject: str, spec: str, device: torch.device) -> Checked:
        rank, count, failures, lack = dist.get_rank(), 0, [], None
        for case in cases(spec, device):
            if not self.plan.includes(case.name):
                continue
            try:
                what = complaint(case, device)
            except Exception as error:  # whatever it is, it is what is to be reported
                what = said_of(error)
                if is_refusal(error, case.codec, device):
                    lack = str(error)
                    continue
            count += 1
            failures += [Failure(case.name, f"worker {rank}: {what}")] if what else []
        return Checked(subject, rank, count, tuple(failures), lack)


def specs(plan: Plan) -> list[str]:
    """The codecs to check."""
    every = [spec for entry in REGISTRY.values() for spec in entry.examples]
    return [spec for spec in every if plan.concerns(f"collectives/{spec}")]


def complaint(case: Case, device: torch.device) -> str | None:
    """What is wrong with what this worker gets; None if nothing is."""
    group = dist.group.WORLD
    assert group is not None
    vectors, key = case.vectors(dist.get_world_size()), next_key(group, SEED)
    x = vectors[dist.get_rank()].clone().to(device)
    gw.all_reduce(x, case.codec, collective=case.collective, seed=SEED)
    expected = gw.simulate(case.codec, vectors, key, case.collective)
    return difference(expected, x.cpu(), any_nan=device.type != "cpu")


def cases(spec: str, device: torch.device) -> Iterator[Case]:
    """The calls with a codec, and on a CPU with what it may have learned."""
    codec = gw.parse(spec)
    learns = isinstance(codec, AdaptiveCodec)
    for numel in NUMELS:
        if isinstance(codec, AdaptiveCodec) and codec.stands_alone:
            yield Case(f"collectives/{spec}/its own/{numel}", codec, None, numel)
        steps = [] if learns and device.type != "cpu" else steps_of(codec, numel)
        for number, step in enumerate(steps):
            for name in _carriers(step):
                place = f"{name}/{numel}/{number}" if learns else f"{name}/{numel}"
                yield Case(f"collectives/{spec}/{place}", step, name, numel)


def _carriers(codec: gw.Codec) -> Iterator[str]:
    """The collectives that take `codec`."""
    for name, collective in COLLECTIVES.items():
        try:
            collective.check(codec, dist.get_world_size())
        except (TypeError, ValueError):
            continue
        yield name
