"""Calibration: what is measured of a known codec gives that codec again."""

from dataclasses import replace

import pytest

from gradwire.planner import calibrate
from gradwire.planner.layout import Chunk, Ready, chunks
from gradwire.planner.network import Network
from gradwire.planner.predict import Model, Setting
from gradwire.planner.rates import table, work_of

SIZES = [[2048 * 2048], [2048 * 2048, 2048 * 2048]]
TINY, TINY_JOBS = 1 << 14, 6


def there(workers=2, rate=1.25e8, cores=1.0):
    network = replace(Network.ideal(workers, rate, 5e-5), send_cpu=3e-10)
    buckets = tuple(Ready(0.05 * (i + 1), tuple(sizes)) for i, sizes in enumerate(SIZES))
    return Setting(network, Model(buckets, 0.1), cores)


def exchanged(work, setting):
    """What a probe would see of `work`: processor time, bytes, and the clock."""
    alone = replace(setting, model=Model(tuple(Ready(0.0, tuple(s)) for s in SIZES), 0.0))
    values = sum(map(sum, SIZES))
    jobs = sum(len(chunks(sizes, 512, setting.network.workers)) for sizes in SIZES)
    value_s = work.ask_s + work.first_s + work.middle_s + work.last_s
    send = work.bytes_per_value * setting.network.send_cpu
    whole = {
        "wall_s": alone.predict(work).step_s,
        "cpu_s": values * (value_s + send) + jobs * work.job_s,
        "nbytes": values * work.bytes_per_value,
    }
    tiny = {
        "cpu_s": TINY_JOBS * (TINY * (value_s + send) + work.job_s),
        "nbytes": TINY_JOBS * TINY * work.bytes_per_value,
    }
    return {
        "buckets": SIZES, "jobs": jobs, "tiny_numel": TINY, "tiny_jobs": TINY_JOBS,
        "whole": whole, "tiny": tiny,
    }  # fmt: skip


def twice(work):
    names = ("ask_s", "first_s", "middle_s", "last_s")
    return replace(work, **{name: 2 * getattr(work, name) for name in names})


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("spec", ["qsgd:bits=4", "dqsg:bits_per_value=2.0", "global-qsgd:bits=4"])
def test_costs_come_back(spec, workers):
    """Twice as slow as the table says, dear jobs, and other workers to wait for."""
    shape = work_of(table()["rates"][spec], workers)
    true = replace(twice(shape), job_s=2e-3, stall_s=4e-3)
    setting = there(workers)
    found = calibrate.calibrated(exchanged(true, setting), shape, setting)
    for name in ("first_s", "last_s", "job_s", "first_bytes"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6), name
    assert setting.predict(found).step_s == pytest.approx(setting.predict(true).step_s, rel=0.02)


def test_without_the_clock_the_wait_for_others_is_missed():
    """The twin that is calibrated by processor time alone."""
    shape = work_of(table()["rates"]["qsgd:bits=4"], 2)
    true, setting = replace(shape, stall_s=0.02), there(2, rate=1.25e10)
    seen = exchanged(true, setting)
    right = calibrate.calibrated(seen, shape, setting)
    blind = replace(right, stall_s=0.0)
    goal = setting.predict(true).step_s
    assert setting.predict(right).step_s == pytest.approx(goal, rel=0.02)
    assert setting.predict(blind).step_s < 0.9 * goal


def test_cores_that_claim_more_than_the_clock_allows_are_not_believed():
    shape = work_of(table()["rates"]["dqsg:bits_per_value=2.0"], 2)
    setting = there(2, rate=1.25e10)
    seen = exchanged(shape, setting)
    seen["whole"]["cpu_s"] *= 1.2
    found = calibrate.calibrated(seen, shape, setting)
    alone = replace(setting, model=Model(tuple(Ready(0.0, tuple(s)) for s in SIZES), 0.0))
    assert alone.predict(found).step_s == pytest.approx(seen["whole"]["wall_s"], rel=0.02)


@pytest.mark.parametrize("times", [1.0, 1.3, 1.8])
@pytest.mark.parametrize("cores", [0.5, 1.0, 4.0])
def test_the_slowdown_of_compute_comes_back(times, cores):
    work = work_of(table()["rates"]["qsgd:bits=4"], 2)
    setting = there(2, rate=1.25e10, cores=cores)
    step_s = replace(setting, slowdown=times).predict(work).step_s
    found = calibrate.slowed(setting, work, step_s)
    assert found.slowdown == pytest.approx(times, rel=1e-3)
    assert found.predict(work).step_s == pytest.approx(step_s, rel=1e-3)


def test_a_step_that_is_shorter_than_it_can_be_slows_nothing():
    work = work_of(table()["rates"]["qsgd:bits=4"], 2)
    assert calibrate.slowed(there(), work, 1e-3).slowdown == 1.0


def test_stages_hold_the_wait_of_every_job_they_stand_for():
    work = replace(work_of(table()["rates"]["qsgd:bits=4"], 2), stall_s=0.25)
    assert work.stages(Chunk(1e6, 3.0), there().network)[0].wait_s == 0.75
