"""What is learned of parameters is told by several threads at once."""

import threading
from contextlib import suppress

import torch

import gradwire as gw
from gradwire.collectives.parts import Part, whole
from gradwire.reduction.route import Route

MET = threading.Barrier(2)


class Slow(dict):
    """Counts that wait, between the reading and the writing, for another thread to do the same."""

    def items(self):
        with suppress(threading.BrokenBarrierError):
            MET.wait(0.3)  # nobody comes if the counter is safe
        return super().items()


class Counting(gw.NDQSG):
    def counts(self, state, seen, numel, world):
        return Slow(super().counts(state, seen, numel, world))


def test_no_count_is_lost():
    adaptation = Route.of(Counting(max_failures=1.0), 2).adaptation

    def learn(tensor):
        parts = [Part(torch.zeros(100), tensor)]
        adaptation.finish(parts, [(piece, (0.25,)) for piece in whole(parts)])

    threads = [threading.Thread(target=learn, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert adaptation.counts["expected_failures"] == 50
    assert {n: state.failure_rate for n, state in adaptation.states.items()} == {0: 0.25, 1: 0.25}
