"""The one who follows the course of `auto`, called by the handle at every bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.futures import Future

from gradwire.adapters.ddp.auto.course import Course, Done, course
from gradwire.adapters.ddp.auto.flight import Flight, Task
from gradwire.adapters.ddp.auto.notes import Notes
from gradwire.collectives.parts import Part
from gradwire.planner.auto.facts import RAW
from gradwire.planner.auto.records import Verdict
from gradwire.planner.auto.settings import Auto
from gradwire.planner.auto.words import standing
from gradwire.transport.executor import Executor, join
from gradwire.transport.link import Link


class Pilot:
    """Gives every step its task. What it knows is in the state of the handle, as learned."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self._notes = Notes()
        self._is_over = False
        self._result: Future[Any] | None = None
        self._set_out()

    def _set_out(self) -> None:
        self._course: Course = course(self._flight)
        self._task = next(self._course)
        self._is_over = False

    @property
    def codec(self) -> Auto:
        """What was attached."""
        return self._flight.auto

    @property
    def is_settled(self) -> bool:
        """Is a plan in force that will stay for a while?"""
        self._catch_up()
        flight = self._flight
        return flight.is_futile or (flight.verdict is not None and not flight.doing)

    @property
    def note(self) -> str:
        """Where it stands, in words."""
        self._catch_up()
        flight = self._flight
        if flight.is_futile:
            return "auto: nothing to plan"
        return standing(flight.verdict, flight.look_at, flight.doing)

    def begin(self) -> None:
        """A step begins. The last one may have been given up; then its task is still to be done."""
        self._catch_up()
        self._notes = Notes()

    def see(self, parts: Sequence[Part]) -> None:
        """A bucket is ready."""
        if self._task.timed:
            self._notes.see(parts, self._task.samples)

    def end(self, means: Future[Tensor], executor: Executor) -> Future[Tensor]:
        """The last bucket of a step is under way; what comes back is over when all is."""
        self._is_over, self._result = True, None
        if self._task.job is not None:
            self._result = executor.submit(partial(_alone, self._task, self._notes))
            return join([means, self._result], lambda results: results[0])
        if self._task.timed:
            return means.then(partial(_noted, self._notes))
        return means

    def _catch_up(self) -> None:
        """If a step is over since, take what came of it, and the task of the next one."""
        if not self._is_over or (self._result is not None and not self._result.done()):
            return
        if self._task.timed and not self._notes.ended:
            return
        self._is_over = False
        result = None if self._result is None else self._result.value()
        if not isinstance(result, BaseException):  # else backward has raised it
            self._task = self._course.send(Done(self._notes, result))

    def save(self, numbers: Mapping[str, int]) -> dict[str, Any]:
        """What is decided, by names of parameters; nothing if it is not."""
        self._catch_up()
        flight = self._flight
        if flight.verdict is None:
            return {}
        names = {number: name for name, number in numbers.items()}
        plan = {names[i]: spec for i, spec in flight.verdict.plan.specs}
        return {**flight.verdict.to_json(), "plan": plan, "look_at": flight.look_at}

    def loaded(
        self, saved: Mapping[str, Any], numbers: Mapping[str, int], *, same_world: bool
    ) -> tuple[Verdict, int] | None:
        """What `save` has saved, to be put into `states`; other workers need another plan."""
        unknown = sorted(set(saved.get("plan", {})) - set(numbers))
        if unknown:
            raise ValueError(f"the state has a plan for unknown parameters: {unknown}.")
        if not saved or not same_world:
            return None
        plan = {numbers[name]: spec for name, spec in saved["plan"].items()}
        kept = {i: spec for i, spec in plan.items() if i in self._flight.sizes}
        rest = {name: value for name, value in saved.items() if name != "look_at"}
        return Verdict.from_json({**rest, "plan": kept}), saved["look_at"]

    @property
    def states(self) -> tuple[Verdict, int] | None:
        """What is decided, and when to look again."""
        verdict = self._flight.verdict
        return None if verdict is None else (verdict, self._flight.look_at)

    @states.setter
    def states(self, states: tuple[Verdict, int] | None) -> None:
        if states is None:
            self._flight.adopt(RAW)
            self._flight.verdict, self._flight.doing = None, ""
        else:
            self._flight.settle(*states)
        self._set_out()


def _alone(task: Task, notes: Notes, link: Link) -> Any:
    """The job of a task, when those before it are over."""
    assert task.job is not None
    with link.in_turn():
        notes.end()
        result = task.job(link, notes)
        notes.resume()
    return result


def _noted(notes: Notes, means: Future[Tensor]) -> Tensor:
    notes.end()
    return means.value()
