"""Message passing without DDP: bytes that say all there is to know, over any link you have.

A server holds the model. Two clients, processes of their own, get its weights, and answer with a
gradient of their own data, 4 bits for each value. Here the link is a pipe.

python examples/messages.py
"""

import multiprocessing
from itertools import islice
from multiprocessing.connection import Connection

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import gradwire as gw
from gradwire.lab.data import batches
from gradwire.lab.mnist import load_mnist, perceptron

CLIENTS, ROUNDS = 2, 60


def client(rank: int, server: Connection) -> None:
    torch.set_num_threads(1)
    model = perceptron()
    mine = batches(load_mnist().train, 32, seed=0, rank=rank, num_workers=CLIENTS)
    for step, (images, labels) in enumerate(islice(mine, ROUNDS)):
        weights = gw.decode(server.recv_bytes())
        vector_to_parameters(weights, model.parameters())
        model.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        server.send_bytes(gw.encode(gw.QSGD(bits=4), gradient, key=gw.Key(step=step, rank=rank)))


def main() -> None:
    torch.manual_seed(0)
    model, digits = perceptron(), load_mnist()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    context = multiprocessing.get_context("spawn")
    links = []
    for rank in range(CLIENTS):
        ours, theirs = context.Pipe()
        context.Process(target=client, args=(rank, theirs), daemon=True).start()
        links.append(ours)

    received = 0
    for _ in range(ROUNDS):
        weights = gw.encode(gw.Identity(), parameters_to_vector(model.parameters()).detach())
        for link in links:
            link.send_bytes(weights)
        messages = [link.recv_bytes() for link in links]
        received += sum(len(message) for message in messages)
        mean = sum(gw.decode(message) for message in messages) / CLIENTS
        parts = mean.split([p.numel() for p in model.parameters()])
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()

    right = (model(digits.test.inputs).argmax(1) == digits.test.targets).float().mean()
    of_float32 = received / (4 * mean.numel() * CLIENTS * ROUNDS)
    print(f"accuracy {right:.1%}, gradients took {of_float32:.3f} of float32's bytes")


if __name__ == "__main__":
    main()
