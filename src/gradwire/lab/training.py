"""One worker's part in the lab: train the task in each of the ways asked for, and measure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

import gradwire as gw
from gradwire.lab.algorithms import parse_algorithm
from gradwire.lab.algorithms.base import Course, Replica, Start
from gradwire.lab.data import Dataset, batches, delayed
from gradwire.lab.layers import Errors
from gradwire.lab.measure import Log, evaluate, mean_over_workers, whole
from gradwire.lab.records import (
    Evaluation,
    Listener,
    Progress,
    Result,
    Settings,
    Training,
    float32_bytes,
    ignore,
)
from gradwire.lab.remarks import on_run, remarks_to
from gradwire.lab.steps import steps_of
from gradwire.lab.tasks import TASKS, Task
from gradwire.planner.auto.candidates import candidates
from gradwire.planner.auto.settings import as_auto

WARM_UP_STEPS = 3  # DDP lays out its buckets anew after the first
COMPUTE_STEPS = 10
REHEARSAL_NUMEL = 2048  # what is rehearsed with fewer values leaves out kernels


def train_all(settings: Settings, listener: Listener) -> None:
    """Train with every codec and algorithm, telling `listener` of each step and each result.

    Called on every worker alike, once the process group is up.
    """
    torch.set_num_threads(settings.threads)
    task = TASKS[settings.task]
    data = task.data(settings.data)
    for index in range(len(settings.trainings)):
        listener(Run(settings, task, data, index).result(listener))


@dataclass(frozen=True)
class Run:
    """One training, seen from one worker."""

    settings: Settings
    task: Task
    data: Dataset
    index: int

    @property
    def training(self) -> Training:
        """What is run."""
        return self.settings.trainings[self.index]

    def result(self, listener: Listener) -> Result:
        """Warm up, train and evaluate. All workers return the same, but for errors of layers."""
        with remarks_to(ignore):  # what is said of a replica that is thrown away
            compute_s = self._warm_up()
        replica = self._replica()
        errors = Errors(replica, self.settings.steps)
        codec = self.training.codec
        with remarks_to(listener) as heard:
            trained = replica.train(self._course(compute_s, listener))
        stats, rows = replica.stats(), replica.rows()
        replica.close()
        log = Log(trained.lines)
        scores = tuple(log.evaluation(*each) for each in trained.scores)
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
            layers=errors.layers(rows),
            remarks=(*heard, *on_run(codec, self.settings.workers, trained.learned, stats)),
            algorithm=self.training.algorithm,
            slow=self.settings.slow,
        )

    def _first_to_reach(self, scores: Sequence[Evaluation]) -> Evaluation | None:
        target = self.settings.target
        if target is None:
            return None
        return next((each for each in scores if self.task.score.reaches(each.score, target)), None)

    def _replica(self) -> Replica:
        start = Start(self.task, self.settings, self.training.codec, self.data)
        return parse_algorithm(self.training.algorithm).start(start)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        settings = self.settings
        return batches(
            self.data.train, settings.batch, settings.seed, dist.get_rank(), settings.workers
        )

    def _warm_up(self) -> float:
        """Train a replica that is thrown away; return seconds per step without exchange."""
        _compile(self.training.codec, self.settings.workers)
        replica, examples = self._replica(), self._batches()
        for batch in islice(examples, WARM_UP_STEPS):
            replica.step(*batch)
        replica.finish()
        dist.barrier()
        start = time.perf_counter()
        with replica.alone():
            for batch in islice(examples, COMPUTE_STEPS):
                replica.step(*batch)
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        replica.close()
        return float(mean_over_workers(seconds)) / COMPUTE_STEPS

    def _course(self, compute_s: float, listener: Listener) -> Course:
        """The last worker waits for every batch, if it is to be slower than the others."""
        settings = self.settings
        is_last = dist.get_rank() == settings.workers - 1
        wait_s = (settings.slow - 1) * compute_s if is_last else 0.0
        return Course(
            batches=delayed(self._batches(), wait_s),
            steps=settings.steps,
            eval_every=settings.eval_every,
            tell=lambda step, loss: listener(Progress(self.index, step, loss)),
            evaluate=lambda model: evaluate(model, self.task, self.data.test),
        )


def _compile(spec: str, num_workers: int) -> None:
    """Compile the codec's kernels on one worker a machine; the others find them in its cache."""
    if int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0:
        auto = as_auto(spec)
        for each in candidates(auto.error) if auto else [spec]:
            _simulate(gw.parse(each), num_workers)
    dist.barrier()


def _simulate(codec: gw.Codec, num_workers: int) -> None:
    for each in steps_of(codec, REHEARSAL_NUMEL):
        gw.simulate(each, list(torch.randn(num_workers, REHEARSAL_NUMEL)), gw.Key())
