"""QSVRG: logistic regression to its optimum, not to the level of some noise.

torchrun --standalone --nproc-per-node 2 examples/qsvrg.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.algorithms import QSVRG
from gradwire.lab.mnist import Logistic, load_mnist


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    digits, model = load_mnist(), Logistic()
    images, labels = digits.train.inputs[rank::size], digits.train.targets[rank::size]

    def loss(chosen: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(images[chosen]), labels[chosen])

    optimizer = QSVRG(
        model.parameters(), loss, len(images), lr=4.0, inner_steps=100, batch=16, l2=0.01
    )
    for _ in range(4):
        norm = optimizer.epoch()

    if rank == 0:
        right = (model(digits.test.inputs).argmax(1) == digits.test.targets).float().mean()
        stats = optimizer.stats()
        of_float32 = stats.bytes_sent / (4 * model.weight.numel() * (size - 1) * stats.steps)
        print(f"accuracy {right:.1%}, the gradient's norm is down to {norm:.0e}; ", end="")
        print(f"a step took {of_float32:.3f} of float32's bytes")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
