"""The lab's networks under FSDP2, with and without a codec."""

import re
import runpy
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import gradwire as gw
from gradwire.lab.data import batches
from gradwire.lab.measure import evaluate
from gradwire.lab.tasks import TASKS

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[1] / "examples" / "fsdp2.py"


def train(rank, name, spec, steps, weights=None):
    """The score in the end, and the statistics; plain FSDP if there is no codec."""
    task, world = TASKS[name], dist.get_world_size()
    torch.manual_seed(0)
    model = task.model()
    for layer in model:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            fully_shard(layer)
    fully_shard(model)
    handle = gw.attach(model, gw.parse(spec), weights=weights) if spec else None
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=steps)
    data = task.data(None)
    for inputs, targets in islice(batches(data.train, 32, 0, rank, world), steps):
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
    score, _ = evaluate(model, task, data.test)
    return score, handle and handle.stats()


@pytest.fixture(scope="module")
def plain_score(worlds):
    """The score without a codec, by the size of the world and the steps; once for all tests."""
    return cache(lambda size, steps: worlds[size].run(train, "mnist-fc", None, steps)[0][0])


@pytest.mark.parametrize(("name", "size", "steps"), [("mnist-fc", 2, 120), ("mnist-fc", 4, 80)])
def test_a_codec_costs_less_than_a_point(worlds, plain_score, name, size, steps):
    plain = plain_score(size, steps)
    score, stats = worlds[size].run(train, name, "qsgd:bits=4", steps)[0]
    float32 = 4 * (784 * 300 + 300 * 100 + 10 * 100 + 410) * (size - 1) / size
    assert plain > 0.85
    assert abs(score - plain) < 0.01
    assert stats.steps == steps
    assert 4 / 32 < stats.bytes_per_step / float32 < 4.3 / 32


@pytest.mark.parametrize("weights", [gw.QSGD(bits=8), gw.DQSG(levels=127)], ids=str)
def test_weights_of_8_bits_cost_less_than_a_point(worlds, plain_score, weights):
    plain = plain_score(2, 120)
    score, stats = worlds[2].run(train, "mnist-fc", "qsgd:bits=4", 120, weights)[0]
    assert abs(score - plain) < 0.01
    assert stats.weight_bytes > 0


def run_example(rank):
    return runpy.run_path(str(EXAMPLE))["train"]()


def test_the_example_trains(worlds):
    for said in worlds[2].run(run_example):
        assert float(re.search(r"accuracy ([\d.]+)%", said)[1]) > 70
        assert float(re.search(r"([\d.]+) bits per value", said)[1]) < 4.3
