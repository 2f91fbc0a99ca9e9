"""DistributedDataParallel: two lines more than without gradwire.

torchrun --standalone --nproc-per-node 2 examples/ddp.py
"""

from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire as gw
from gradwire.lab.data import batches
from gradwire.lab.mnist import load_mnist, perceptron


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(perceptron())
    handle = gw.attach(ddp, gw.QSGD(bits=4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)

    digits = load_mnist()
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = batches(digits.train, 32, seed=0, rank=rank, num_workers=size)
    for images, labels in islice(mine, 100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()

    handle.close()
    if rank == 0:
        right = (ddp.module(digits.test.inputs).argmax(1) == digits.test.targets).float().mean()
        stats = handle.stats()
        print(f"accuracy {right:.1%}, {stats.bytes_per_step:,.0f} bytes a step, ", end="")
        print(f"{stats.bits_per_value:.2f} bits per value")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
