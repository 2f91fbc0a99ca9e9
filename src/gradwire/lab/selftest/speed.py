"""How fast codecs encode and decode on the device, beside memcpy there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import gradwire as gw
from gradwire.codecs import REGISTRY
from gradwire.lab.bench import Bench, Row, Setup
from gradwire.lab.selftest.plan import Plan
from gradwire.lab.selftest.records import Begun, Checked, Failure, Measured, Say
from gradwire.lab.selftest.trouble import is_refusal, said_of
from gradwire.lab.steps import steps_of

NUMEL = {"cpu": 1 << 24, "cuda": 1 << 26}
"""More than caches hold."""
FEW = 2048
REPEAT, SECONDS = 5, 3.0


@dataclass(frozen=True)
class SpeedCheck:
    """What one worker does, alone."""

    plan: Plan

    def __call__(self, say: Say) -> None:
        """Measure all codecs, in turns."""
        device = self.plan.own_device(0)
        found = []
        for spec in specs(self.plan):
            subject = f"speed/{spec}"
            say(Begun(subject, 0))
            checked = _tried(subject, spec, device)
            say(checked)
            found += [spec] if checked.cases and not checked.failures else []
        if found:
            say(Measured(tuple(measured(found, device))))


def _tried(subject: str, spec: str, device: torch.device) -> Checked:
    """There and back, before anything is timed."""
    codec, *_ = steps_of(gw.parse(spec), FEW, device)
    x = torch.arange(1.0, 1.0 + FEW, device=device)
    try:
        codec.decode(codec.encode(x, gw.Key()), FEW, gw.Key())
    except Exception as error:  # whatever it is, it is what is to be reported
        if is_refusal(error, codec, device):
            return Checked(subject, 0, missing=str(error))
        return Checked(subject, 0, 1, (Failure(subject, said_of(error)),))
    return Checked(subject, 0, 1)


def specs(plan: Plan) -> list[str]:
    """One a codec."""
    return [spec for spec in REGISTRY if plan.concerns(f"speed/{spec}")]


def measured(found: list[str], device: torch.device) -> list[Row]:
    """A row for each codec."""
    numel = NUMEL[device.type]
    setup = Setup(tuple(found), numel, 1, "float32", REPEAT, SECONDS, 0, device.type)
    bench = Bench(setup)
    for _ in bench.run():
        pass
    return bench.rows()
