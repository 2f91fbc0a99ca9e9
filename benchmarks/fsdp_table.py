"""The table of docs/fsdp.md: accuracy, and bytes by gradwire's account and by the interfaces.

python benchmarks/fsdp_table.py --steps 200

Four workers in network namespaces, for which it needs iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import gradwire as gw
from gradwire.lab.data import batches
from gradwire.lab.links.access import prepare
from gradwire.lab.links.namespaces import IFACE, address, network, sent_bytes
from gradwire.lab.links.shape import Shape
from gradwire.lab.measure import evaluate
from gradwire.lab.tasks import TASKS

WORKERS = 4
LINK = Shape.parse("10gbit")
ROWS = [
    (None, None), ("none", "none"), ("qsgd:bits=4", None), ("qsgd:bits=4", "qsgd:bits=8"),
    ("qsgd:bits=4", "dqsg:levels=127"),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments.rank, arguments.steps)
        return
    try:
        prepare(LINK)
    except ValueError as error:
        sys.exit(f"Error: {error}")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": IFACE, "OMP_NUM_THREADS": "1"}
    with network(WORKERS, LINK) as made:
        command = [sys.executable, __file__, "--steps", str(arguments.steps), "--rank"]
        workers = [
            subprocess.Popen([*made.command(rank), *command, str(rank)], env=environment)
            for rank in range(WORKERS)
        ]
        sys.exit(max(worker.wait() for worker in workers))


def work(rank: int, steps: int) -> None:
    """Train every row; rank 0 prints it."""
    torch.set_num_threads(1)
    master = f"tcp://{address(0)}:29500"
    dist.init_process_group("gloo", init_method=master, rank=rank, world_size=WORKERS)
    for gradients, weights in ROWS:
        row = train(rank, gradients, weights, steps)
        if rank == 0:
            print(json.dumps({"gradients": gradients, "weights": weights, **row}), flush=True)
    dist.barrier()
    os._exit(0)  # docs/fsdp.md, "The end of a script"


def train(rank: int, gradients: str | None, weights: str | None, steps: int) -> dict[str, float]:
    """The accuracy in the end, and bytes a step of this worker, those of the evaluation too."""
    task = TASKS["mnist-cnn"]
    torch.manual_seed(0)
    model = task.model()
    for layer in model:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fully_shard(layer)
    fully_shard(model)
    handle = None
    if gradients is not None:
        coded = None if weights is None else gw.parse(weights)
        handle = gw.attach(model, gw.parse(gradients), weights=coded)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=steps)
    data = task.data(None)
    dist.barrier()
    before = sent_bytes()
    for inputs, targets in islice(batches(data.train, 32, 0, rank, WORKERS), steps):
        optimizer.zero_grad()
        task.loss(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()
    score, _ = evaluate(model, task, data.test)
    dist.barrier()
    found = {"accuracy": score, "on the wire": (sent_bytes() - before) / steps}
    if handle is not None:
        stats = handle.stats()
        found["of gradients"] = stats.bytes_per_step
        found["of weights"] = stats.weight_bytes / steps
    return found


if __name__ == "__main__":
    main()
