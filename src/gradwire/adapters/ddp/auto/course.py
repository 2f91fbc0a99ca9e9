"""The course of `auto`, from step to step: measure, try, hold, and look again."""

from __future__ import annotations

import statistics
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gradwire.adapters.ddp.auto.agreement import from_first, means
from gradwire.adapters.ddp.auto.flight import Flight, Task
from gradwire.adapters.ddp.auto.notes import Notes
from gradwire.adapters.ddp.auto.offers import FEW, try_codec
from gradwire.adapters.ddp.auto.survey import Survey
from gradwire.planner.auto import words
from gradwire.planner.auto.candidates import candidates
from gradwire.planner.auto.decide import verdict
from gradwire.planner.auto.facts import Assignment
from gradwire.planner.auto.records import Shortlist, Verdict
from gradwire.transport.link import Link

NOTHING = Task()


@dataclass(frozen=True)
class Done:
    """A step that is over: its notes, and the result of its job."""

    notes: Notes
    result: Any = None


Course = Generator[Task, Done, None]


def course(flight: Flight) -> Course:
    """Gives the task of each step, and takes what came of it.

    After the first step DDP lays out its buckets anew, so nothing is measured in it.
    """
    yield NOTHING if flight.verdict or flight.is_futile else Task(job=partial(_rehearse, flight))
    while flight.is_futile or flight.reducer.step < flight.reducer.warmup_steps:
        yield NOTHING
    while True:
        while flight.verdict is not None and flight.reducer.step < flight.look_at:
            yield NOTHING
        yield from _look(flight)


def _rehearse(flight: Flight, link: Link, notes: Notes) -> None:
    """Load the kernels of all codecs, which may take seconds."""
    for spec in candidates(flight.auto.error):
        try_codec(spec, {0: torch.zeros(FEW)}, {0: FEW}, link, 1, 0.0)


def _look(flight: Flight) -> Course:
    """Measure, try what is worth it, and settle."""
    found = None
    while found is None:
        found = yield from _survey(flight)
    before, layers = flight.plan, len(flight.sizes)
    chosen = verdict(found, before, [])
    if found.tried:
        flight.say(words.trying(found, layers))
        chosen = yield from _trials(flight, found)
    step = flight.reducer.step
    flight.settle(chosen, step + chosen.look_in)
    flight.say(words.decided(found, chosen, before, layers, step))


def _survey(flight: Flight) -> Generator[Task, Done, Shortlist | None]:
    survey = Survey(flight)
    flight.doing = "measuring"
    while True:
        done = yield Task(timed=True, samples=survey.samples, job=survey.job)
        if survey.is_over:
            found: Shortlist | None = done.result
            return found


def _trials(flight: Flight, found: Shortlist) -> Generator[Task, Done, Verdict]:
    """Some steps with each plan, the first of which does not count; the last one decides."""
    before = flight.plan
    spans: list[list[float]] = [[] for _ in found.tried]
    for place, each in enumerate(found.tried):
        flight.adopt(each.plan)
        flight.doing = f"trying plan {place + 1} of {len(found.tried)}"
        yield NOTHING
        for left in reversed(range(found.timed)):
            is_last = each is found.tried[-1] and not left
            decide = partial(_decide, found, before, spans) if is_last else None
            done = yield Task(timed=True, job=decide)
            spans[place].append(done.notes.span_s)
    return Verdict.from_json(done.result)


def _decide(
    found: Shortlist, before: Assignment, spans: list[list[float]], link: Link, notes: Notes
) -> dict[str, Any]:
    """Compare what the plans took, over all ranks."""
    *others, last = spans
    rows = [*others, [*last, notes.span_s]]
    agreed = means(link, {"span_s": [statistics.median_low(row) for row in rows]})["span_s"]
    seconds = [found.outside_s + span_s for span_s in agreed]
    decided: dict[str, Any] = from_first(link, lambda: verdict(found, before, seconds).to_json())
    return decided
