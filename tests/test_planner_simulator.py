"""The simulator of unlike workers, against closed forms and against the replay of one of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.planner import closed_forms
from gradwire.planner.network import Network
from gradwire.planner.predict import Model, Setting
from gradwire.planner.rates import table, work_of
from gradwire.planner.simulator import Cluster, simulate_step
from gradwire.planner.work import PLAIN, raw
from test_planner import free

WORKERS = st.integers(2, 24)
RATES = st.floats(1e6, 1e10)
NBYTES = st.floats(1e3, 1e9)
LATENCIES = st.sampled_from([0.0, 1e-4, 0.05])


def equal(workers, rate, **rest):
    return Cluster(np.full(workers, rate), np.full(workers, rate), **rest)


@settings(deadline=None)
@given(WORKERS, RATES, NBYTES, LATENCIES)
def test_one_bucket_on_equal_links_is_the_closed_form(workers, rate, nbytes, alpha):
    cluster, links = equal(workers, rate, latency=alpha), [rate] * workers

    def alone(work):
        return simulate_step(cluster, [(0.0, nbytes)], work).step_s

    assert alone(raw(PLAIN, workers, 1)) == pytest.approx(closed_forms.ring(nbytes, links, alpha))
    found = alone(free("all_gather", workers))
    assert found == pytest.approx(closed_forms.all_gather(nbytes, links, alpha))
    if workers > 2:
        found = alone(free("two_shot", workers))
        assert found == pytest.approx(closed_forms.two_shot(nbytes, links, alpha))
    asking = replace(free("code_reduce", workers), ask_bytes=0.01 * (workers - 1))
    expected = closed_forms.code_reduce(0.01 * nbytes, nbytes, nbytes, links, alpha)
    assert alone(asking) == pytest.approx(expected)


@settings(deadline=None)
@given(st.integers(3, 24), RATES, st.floats(1.0, 20.0))
def test_one_slow_link_delays_everyone_as_the_closed_form_says(workers, rate, times):
    rates = np.full(workers, rate)
    rates[-1] /= times
    cluster = Cluster(rates, rates)
    for work, form in (
        (raw(PLAIN, workers, 1), closed_forms.ring),
        (free("two_shot", workers), closed_forms.two_shot),
    ):
        found = simulate_step(cluster, [(0.0, 1e6)], work).step_s
        expected = form(1e6, list(rates), 0.0)
        assert expected * 0.5 < found <= expected * (1 + 1e-9)
        if times > 4:
            assert found == pytest.approx(expected, rel=2 / workers)


@settings(deadline=None)
@given(WORKERS, RATES, st.floats(0.0, 5.0))
def test_a_straggler_delays_a_step_by_what_he_needs_more(workers, rate, more):
    slower = np.ones(workers)
    slower[workers // 2] += more
    late = equal(workers, rate, slower=slower)
    work = raw(PLAIN, workers, 1)
    on_time = simulate_step(equal(workers, rate), [(1.0, 1e6)], work).step_s
    found = simulate_step(late, [(1.0, 1e6)], work).step_s
    assert on_time + more * 0.5 - 1e-9 <= found <= closed_forms.straggling(on_time, [more]) + 1e-9


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("spec", ["none", "qsgd:bits=4", "global-qsgd:bits=4"])
@pytest.mark.parametrize("rate", [1e6, 1e8, 1e9])
def test_equal_workers_take_as_long_as_the_replay_says(workers, spec, rate):
    """The replay has lanes and fair shares, the simulator queues: they agree where one waits for
    link or compute, and nearly so in between."""
    model = Model.of(25_600_000, 0.5)
    work = work_of(table()["rates"][spec], workers, job_s=0.0)
    there = Setting(Network.ideal(workers, rate, 1e-4), model, cores=64.0)
    buckets = [(ready.at_s, float(sum(ready.sizes))) for ready in model.buckets]
    found = simulate_step(equal(workers, rate, latency=1e-4), buckets, work)
    assert found.step_s == pytest.approx(there.predict(work).step_s, rel=0.08)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_worker_sends_and_receives_one_message_at_a_time(direction):
    """Four workers whose one direction is slow: three messages of a fourth, in each shot."""
    slow, fast = np.full(4, 1e6), np.full(4, 1e12)
    cluster = Cluster(slow, fast) if direction == "up" else Cluster(fast, slow)
    found = simulate_step(cluster, [(0.0, 4e6)], free("two_shot", 4)).step_s
    assert found == pytest.approx(6.0, rel=1e-3)


def test_many_small_messages_become_the_bottleneck():
    work = work_of(table()["rates"]["qsgd:bits=4"], 256)
    few = simulate_step(equal(256, 1e9, message_s=2e-5), [(0.01, 1e5)], work)
    assert few.bottleneck == "messages"
    many = simulate_step(equal(256, 1e9, message_s=2e-5), [(0.01, 1e9)], work)
    assert many.bottleneck != "messages"
