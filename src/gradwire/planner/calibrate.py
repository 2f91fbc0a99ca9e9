"""From what a probe measured to what codecs cost: the replay of it must take as long.

A probe exchanges the buckets of a model with nothing beside it, and times jobs that are tiny. Their
processor time says what a value and a job cost. What the clock shows beyond the replay of the
exchange is the time in which a job waits for other workers to be scheduled: `Work.stall_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gradwire.planner.layout import Ready
from gradwire.planner.network import Network
from gradwire.planner.predict import Model, Setting
from gradwire.planner.work import Work

LEAST = 0.1
"""Of the time of an exchange, what values take at least of it if jobs seem to take more."""
MOST_STALL_S, MOST_SLOWDOWN = 0.1, 2.0
CPU_LEAST = 0.6
"""Cores are never taken to have worked less than this share of what they say: their clocks tick."""
NEAR = 1.02


def slowed(there: Setting, work: Work, step_s: float) -> Setting:
    """`there`, with the slowdown of compute at which a step with `work` takes `step_s`."""

    def taken(times: float) -> float:
        return replace(there, slowdown=times).predict(work).step_s

    return replace(there, slowdown=_least(taken, 1.0, MOST_SLOWDOWN, step_s))


def calibrated(exchange: Mapping[str, Any], shape: Work, there: Setting) -> Work:
    """`shape`, whose stages have the right proportions, with what was measured `there`."""
    work = _with_bytes(exchange, _with_costs(exchange, shape, there.network))
    alone = replace(there, model=_nothing_but(exchange))
    wall_s = float(exchange["whole"]["wall_s"])

    def scaled_s(share: float) -> float:
        return alone.predict(_scaled(work, share)).step_s

    def stalled_s(stall_s: float) -> float:
        return alone.predict(replace(work, stall_s=stall_s)).step_s

    if stalled_s(0.0) > wall_s * NEAR:
        return _scaled(work, _least(scaled_s, CPU_LEAST, 1.0, wall_s))
    return replace(work, stall_s=_least(stalled_s, 0.0, MOST_STALL_S, wall_s))


def _with_costs(exchange: Mapping[str, Any], shape: Work, net: Network) -> Work:
    """Two measurements, two unknowns: what a value and what a job takes of the cores."""
    whole, tiny = exchange["whole"], exchange["tiny"]
    values, jobs = _values(exchange), int(exchange["jobs"])
    small, tiny_jobs = int(exchange["tiny_numel"]), int(exchange["tiny_jobs"])
    cpu_s = max(whole["cpu_s"] - net.send_cpu * whole["nbytes"], LEAST * whole["cpu_s"])
    job = max(tiny["cpu_s"] - net.send_cpu * tiny["nbytes"], 0.0) / tiny_jobs
    value_s = max((cpu_s - jobs * job) / max(values - jobs * small, 1), LEAST * cpu_s / values)
    expected = shape.ask_s + shape.first_s + shape.middle_s + shape.last_s
    found = _scaled(shape, value_s / expected if expected else 1.0)
    return replace(found, job_s=max(job - small * value_s, 0.0))


def _with_bytes(exchange: Mapping[str, Any], work: Work) -> Work:
    wider = exchange["whole"]["nbytes"] / _values(exchange) / work.bytes_per_value
    names = ("ask_bytes", "first_bytes", "middle_bytes")
    return replace(work, **{name: getattr(work, name) * wider for name in names})


def _scaled(work: Work, factor: float) -> Work:
    names = ("ask_s", "first_s", "middle_s", "last_s", "job_s")
    return replace(work, **{name: getattr(work, name) * factor for name in names})


def _values(exchange: Mapping[str, Any]) -> int:
    return sum(sum(sizes) for sizes in exchange["buckets"])


def _nothing_but(exchange: Mapping[str, Any]) -> Model:
    """A model whose buckets are all ready at once."""
    return Model(tuple(Ready(0.0, tuple(sizes)) for sizes in exchange["buckets"]), 0.0)


def _least(of: Callable[[float], float], low: float, high: float, goal: float) -> float:
    """The least number at which `of`, which grows, reaches `goal`; `low` or `high` if none does."""
    if of(low) >= goal:
        return low
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < goal else (low, middle)
    return high
