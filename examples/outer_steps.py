"""Outer steps: workers train apart, and exchange how far their weights have moved.

torchrun --standalone --nproc-per-node 2 examples/outer_steps.py
"""

from itertools import islice

import torch
import torch.distributed as dist
from torch import nn

import gradwire as gw
from gradwire.lab.data import batches
from gradwire.lab.mnist import load_mnist, perceptron


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = perceptron()
    outer = gw.algorithms.OuterSteps(model, "qsgd:bits=4", every=10, overlap=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)

    digits = load_mnist()
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = batches(digits.train, 32, seed=0, rank=rank, num_workers=size)
    for images, labels in islice(mine, 150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()  # with moments of its own
        outer.step()  # exchanges every tenth time, while the next two steps are made

    outer.finish()  # now all workers have the same weights
    outer.close()
    if rank == 0:
        right = (model(digits.test.inputs).argmax(1) == digits.test.targets).float().mean()
        stats = outer.stats()
        print(f"accuracy {right:.1%}, {stats.bytes_per_step:,.0f} bytes a step, ", end="")
        print(f"{stats.counts['outer_steps']:.0f} outer steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
