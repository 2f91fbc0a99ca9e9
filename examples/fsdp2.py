"""FSDP2, that is `fully_shard`: two lines more than without gradwire.

torchrun --standalone --nproc-per-node 2 examples/fsdp2.py
"""

import os
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import gradwire as gw
from gradwire.lab.data import batches
from gradwire.lab.mnist import load_mnist, perceptron


def main() -> None:
    dist.init_process_group("gloo")
    said = train()
    if dist.get_rank() == 0:
        print(said, flush=True)
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo may outlive the interpreter: docs/fsdp.md, "The end of a script"


def train() -> str:
    """Train 784-300-100-10 on this worker's share of the digits."""
    torch.manual_seed(0)
    model = perceptron()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    handle = gw.attach(model, gw.QSGD(bits=4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    digits = load_mnist()
    mine = batches(
        digits.train, 32, seed=0, rank=dist.get_rank(), num_workers=dist.get_world_size()
    )
    for images, labels in islice(mine, 100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    with torch.no_grad():  # on every worker, since a forward pass gathers the weights
        right = (model(digits.test.inputs).argmax(1) == digits.test.targets).float().mean()
    stats = handle.stats()
    return (
        f"accuracy {right:.1%}, {stats.bytes_per_step:,.0f} bytes a step, "
        f"{stats.bits_per_value:.2f} bits per value"
    )


if __name__ == "__main__":
    main()
