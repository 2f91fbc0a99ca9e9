"""One worker's part in the lab: train the task with each codec in turn, and measure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.adaptive import AdaptiveCodec
from gradwire.lab.data import Dataset, batches
from gradwire.lab.layers import Errors
from gradwire.lab.measure import Log, Row, evaluate, mean_over_workers, whole
from gradwire.lab.records import (
    Evaluation,
    Listener,
    Progress,
    Result,
    Settings,
    float32_bytes,
    ignore,
)
from gradwire.lab.remarks import on_run, remarks_to
from gradwire.lab.tasks import TASKS, Task

WARM_UP_STEPS = 3  # DDP lays out its buckets anew after the first
COMPUTE_STEPS = 10
REHEARSAL_NUMEL = 2048  # what is rehearsed with fewer values leaves out kernels


def train_all(settings: Settings, listener: Listener) -> None:
    """Train with every codec, telling `listener` of each step and each result.

    Called on every worker alike, once the process group is up.
    """
    torch.set_num_threads(settings.threads)
    task = TASKS[settings.task]
    data = task.data(settings.data)
    for index in range(len(settings.codecs)):
        listener(Run(settings, task, data, index).result(listener))


class Replica:
    """A freshly seeded model under DDP with a codec attached, and its optimizer."""

    def __init__(self, task: Task, settings: Settings, codec: str) -> None:
        torch.manual_seed(settings.seed)
        self.loss = task.loss
        self.ddp = DistributedDataParallel(task.model())
        self.handle = gw.attach(self.ddp, gw.parse(codec), seed=settings.seed)
        self.optimizer, self.schedule = task.optimize(
            self.ddp.parameters(), settings.lr, settings.steps
        )

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        """Train on one batch and return its loss."""
        self.optimizer.zero_grad()
        loss = self.loss(self.ddp(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    def num_values(self) -> int:
        """Count the gradients that a step exchanges."""
        return sum(p.numel() for p in self.ddp.parameters() if p.requires_grad)


@dataclass(frozen=True)
class Run:
    """One codec's training, seen from one worker."""

    settings: Settings
    task: Task
    data: Dataset
    index: int

    def result(self, listener: Listener) -> Result:
        """Warm up, train and evaluate. All workers return the same, but for errors of layers."""
        with remarks_to(ignore):  # what is said of a replica that is thrown away
            compute_s = self._warm_up()
        replica = self._replica()
        errors = Errors(replica.handle, self.settings.steps)
        codec = self.settings.codecs[self.index]
        with remarks_to(listener) as heard:
            rows, learned, found = self._train(replica, listener)
        stats = replica.handle.stats()
        plan = replica.handle.plan()
        replica.handle.close()
        log = Log(rows)
        scores = tuple(log.evaluation(*each) for each in found)
        bytes_per_step = whole(log.total("bytes") / log.steps)
        baseline = float32_bytes(replica.num_values(), self.settings.workers)
        return Result(
            codec=codec,
            task=self.task.name,
            score=scores[-1].score,
            score_name=self.task.score.name,
            higher_is_better=self.task.score.higher_is_better,
            loss=scores[-1].loss,
            bytes_per_step=bytes_per_step,
            bits_per_value=stats.bits_per_value,
            ratio=bytes_per_step / baseline if baseline else None,
            step_s=log.typical("seconds"),
            compute_s=compute_s,
            encode_s=log.typical("encode_s"),
            comm_s=log.typical("comm_s"),
            decode_s=log.typical("decode_s"),
            steps=log.steps,
            workers=self.settings.workers,
            seed=self.settings.seed,
            parameters=replica.num_values(),
            link=None if self.settings.link is None else str(self.settings.link),
            target=self.settings.target,
            reached=self._first_to_reach(scores),
            scores=scores,
            curve=log.curve(),
            layers=errors.layers(plan.rows),
            remarks=(*heard, *on_run(codec, self.settings.workers, learned, stats)),
        )

    def _first_to_reach(self, scores: Sequence[Evaluation]) -> Evaluation | None:
        target = self.settings.target
        if target is None:
            return None
        return next((each for each in scores if self.task.score.reaches(each.score, target)), None)

    def _replica(self) -> Replica:
        return Replica(self.task, self.settings, self.settings.codecs[self.index])

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        settings = self.settings
        return batches(
            self.data.train, settings.batch, settings.seed, dist.get_rank(), settings.workers
        )

    def _warm_up(self) -> float:
        """Train a replica that is thrown away; return seconds per step without exchange."""
        _compile(gw.parse(self.settings.codecs[self.index]), self.settings.workers)
        replica, examples = self._replica(), self._batches()
        for batch in islice(examples, WARM_UP_STEPS):
            replica.step(*batch)
        dist.barrier()
        start = time.perf_counter()
        with replica.ddp.no_sync():
            for batch in islice(examples, COMPUTE_STEPS):
                replica.step(*batch)
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        replica.handle.close()
        return float(mean_over_workers(seconds)) / COMPUTE_STEPS

    def _train(
        self, replica: Replica, listener: Listener
    ) -> tuple[list[Row], list[dict[str, str]], list[tuple[int, float, float]]]:
        """Return a row for each step, what the codec had learned before it, and scores by step."""
        rows, learned, scores, seconds = [], [], [], 0.0
        stats = replica.handle.stats()
        dist.barrier()
        for step, batch in enumerate(islice(self._batches(), self.settings.steps), start=1):
            learned.append(stats.learned)
            start = time.perf_counter()
            loss = replica.step(*batch)
            seconds += time.perf_counter() - start
            stats = replica.handle.stats()
            rows.append(
                Row(loss, stats.bytes_sent, seconds, stats.encode_s, stats.comm_s, stats.decode_s)
            )
            listener(Progress(self.index, step, loss))
            if step % self.settings.eval_every == 0 or step == self.settings.steps:
                scores.append((step, *evaluate(replica.ddp.module, self.task, self.data.test)))
        return rows, learned, scores


def _compile(codec: gw.Codec, num_workers: int) -> None:
    """Compile the codec's kernels on one worker a machine; the others find them in its cache."""
    if int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0:
        codecs = codec.examples(REHEARSAL_NUMEL) if isinstance(codec, AdaptiveCodec) else (codec,)
        for each in codecs:
            gw.simulate(each, list(torch.randn(num_workers, REHEARSAL_NUMEL)), gw.Key())
    dist.barrier()
