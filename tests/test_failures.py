"""The counters of wrong values are told by several threads at once."""

import threading
from contextlib import suppress

import torch
from gradwire.reduction.failures import Failures

import gradwire as gw
from gradwire.collectives.parts import Part, whole
from gradwire.reduction.route import Route


class Slow(gw.NDQSG):
    """Waits, between reading the counter and writing it, for another thread to do the same."""

    def num_dependent(self, world):
        with suppress(threading.BrokenBarrierError):
            MET.wait(0.3)  # nobody comes if the counter is safe
        return 1


MET = threading.Barrier(2)


def test_no_count_is_lost():
    failures, values = Failures(speaks=False), torch.zeros(100)
    route = Route(Slow(), "all_gather", error_feedback=False, world=2)

    def learn(tensor):
        failures.learn(route, [whole([Part(values, tensor)])], [{tensor: 0.25}])

    threads = [threading.Thread(target=learn, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures.expected == 50
    assert failures.rates == {0: 0.25, 1: 0.25}
