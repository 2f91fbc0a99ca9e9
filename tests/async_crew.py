"""Workers of an asynchronous server in processes of their own, which do as they are told."""

import logging
import multiprocessing
import os
import signal
from contextlib import contextmanager

import torch
from torch import nn

import world
from gradwire.algorithms import AsyncServer, AsyncWorker

MODEL = {"min_numel": 100}
NUMEL = 20 * 40 + 40 + 40 * 10 + 10


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10))


def loss_of(net, seed):
    """Of a batch that only `seed` decides."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(16, 20, generator=generator)
    return nn.functional.mse_loss(net(inputs), inputs[:, :10] * 0.5)


def flat(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)


@contextmanager
def serving(codec, *, optimizer=sgd, **settings):
    """A server with a model of its own."""
    net = model()
    server = AsyncServer(net, optimizer(net), codec, **MODEL | settings)
    server.net = net
    try:
        yield server
    finally:
        server.close(linger=0.0)


class Hand:
    """A worker in a process, which takes one order after the other."""

    def __init__(self, address, codec, **settings):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(world._PRELOADED)
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, address, codec, MODEL | settings)
        self.process = context.Process(target=_obey, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, order, *arguments):
        """Let it do something that takes a server."""
        self._pipe.send((order, arguments))

    def answer(self, server=None, seconds=120.0):
        """What came of it, while `server` serves; a worker may try several times to connect."""
        for _ in range(int(seconds / 0.05)):
            if server is not None:
                server.serve(seconds=0.01)
            if self._pipe.poll(0.0 if server is not None else 0.05):
                return self._pipe.recv()
        raise TimeoutError("a worker did not answer")

    def do(self, server, order, *arguments):
        self.begin(order, *arguments)
        return self.answer(server)

    def kill(self, number=signal.SIGKILL):
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.join()


def hands(server, count, codec, **settings):
    """So many, which have joined in this order."""
    crew = []
    for i in range(count):
        crew.append(Hand(server.address, codec, name=f"hand {i}", **settings))
        crew[-1].answer(server)
    return crew


def _obey(pipe, address, codec, settings):
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    net = model()
    worker = AsyncWorker(net, codec, address, **settings)
    pipe.send("joined")
    while True:
        try:
            order, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(_ORDERS[order](worker, net, *arguments))


def _gradient(worker, net, seed):
    loss_of(net, seed).backward()


def _step(worker, net, seed):
    loss_of(net, seed).backward()
    return worker.step()


def _spoiled(worker, net):
    next(net.parameters()).grad = torch.full((40, 20), torch.inf)
    return worker.step()


def _state(worker, net):
    facts = {"rank": worker.rank, "version": worker.version, "done": worker.done}
    return facts | {
        "weights": worker.weights,
        "model": flat(net),
        "owed": worker.owed,
        "stats": worker.stats(),
    }


_ORDERS = {
    "gradient": _gradient,
    "push": lambda worker, net: worker.step(),
    "step": _step,
    "spoiled": _spoiled,
    "pull": lambda worker, net: worker.pull(),
    "state": _state,
    "close": lambda worker, net: worker.close(),
}
