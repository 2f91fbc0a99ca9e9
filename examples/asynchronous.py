"""Asynchronous training: a server, and workers that push gradients without waiting for each other.

python examples/asynchronous.py

It starts all of them here. On several machines, run `serve` on one and `work` on the others.
"""

import multiprocessing
import time

import torch
from torch import nn

import gradwire as gw
from gradwire.lab.data import batches
from gradwire.lab.mnist import load_mnist, perceptron

WORKERS, STEPS, CODEC = 3, 450, "qsgd:bits=4"


def work(number: int, address: str) -> None:
    """Compute gradients as long as they are wanted."""
    torch.set_num_threads(1)
    model = perceptron()
    worker = gw.algorithms.AsyncWorker(model, CODEC, address, name=f"worker {number}")
    mine = batches(load_mnist().train, 32, seed=0, rank=number, num_workers=WORKERS)
    while not worker.done:
        images, labels = next(mine)
        nn.functional.cross_entropy(model(images), labels).backward()
        worker.step()  # pushes the gradients, and takes the newest weights
        if number == 0:
            time.sleep(0.05)  # this one is slow, and nobody waits for it
    if number == 1:
        print(f"{worker.stats().bytes_per_step:,.0f} bytes a step")


def serve() -> None:
    torch.manual_seed(0)
    model = perceptron()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = gw.algorithms.per_push(sgd, WORKERS)  # every gradient makes a step of its own
    server = gw.algorithms.AsyncServer(model, optimizer, CODEC, address="localhost:0")

    start = multiprocessing.get_context("spawn").Process
    workers = [start(target=work, args=(i, server.address)) for i in range(WORKERS)]
    for process in workers:
        process.start()
    server.serve(until=STEPS)  # the model has made so many steps, with whatever came
    server.close()  # sends the workers home
    for process in workers:
        process.join()

    digits, stats = load_mnist().test, server.stats()
    right = (model(digits.inputs).argmax(1) == digits.targets).float().mean()
    print(f"accuracy {right:.1%}, gradients of each worker", end=" ")
    print(*(each.counted for each in stats.workers), sep=", ")
    print("how many steps late, and how often:", stats.delays)


if __name__ == "__main__":
    serve()
