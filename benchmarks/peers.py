"""`gradwire train` with the gradient hooks that come with PyTorch, as one more algorithm.

    .venv/bin/python benchmarks/peers.py train -c none --link 10gbit \\
        -a sync -a pytorch:hook=fp16 -a pytorch:hook=powersgd

The bf16 hook refuses gloo. They need a link, because their bytes are those that the interface
counts. PowerSGD has rank 4, no warm-up but the two steps that it insists on, and one bucket: with
two it deadlocks gloo.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire.__main__ import main
from gradwire.lab.algorithms import ALGORITHMS
from gradwire.lab.algorithms.base import Algorithm, Replica, Start
from gradwire.lab.algorithms.sync import SyncReplica
from gradwire.lab.links.namespaces import sent_bytes
from gradwire.reduction.plan import Row
from gradwire.reduction.stats import Stats
from pytorch_hooks import ONE_BUCKET_MB, register_half, register_powersgd

HALF, POWERSGD = "fp16", "powersgd"


class HookedReplica(SyncReplica):
    """A model under DDP with a hook of PyTorch's."""

    def __init__(self, start: Start, hook: str) -> None:
        task, settings = start.task, start.settings
        torch.manual_seed(settings.seed)
        self.model, self._loss = task.model(), task.loss
        cap = ONE_BUCKET_MB if hook == POWERSGD else None
        self._ddp = DistributedDataParallel(self.model, bucket_cap_mb=cap)
        register = register_powersgd if hook == POWERSGD else register_half
        register(self._ddp)
        self._optimizer, self._schedule = task.optimize(
            self._ddp.parameters(), settings.lr, settings.steps
        )
        self._before = sent_bytes()

    def stats(self) -> Stats:
        sent = sent_bytes() - self._before
        return Stats(0, sent, 0.0, 0.0, 0.0, 0.0, ())

    def log_to(self, writer: object, every: int) -> None:
        return

    def rows(self) -> tuple[Row, ...]:
        return ()

    def close(self) -> None:
        return


@dataclass(frozen=True)
class Hooked(Algorithm):
    """DDP with one of its own hooks; the codec is not used."""

    hook: str = POWERSGD

    def __post_init__(self) -> None:
        if self.hook not in (HALF, POWERSGD):
            raise ValueError(f"`hook` must be `{HALF}` or `{POWERSGD}`, got {self.hook!r}.")

    def start(self, start: Start) -> Replica:
        return HookedReplica(start, self.hook)


ALGORITHMS["pytorch"] = Hooked  # in workers too: they import this file

if __name__ == "__main__":
    main()
