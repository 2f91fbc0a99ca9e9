"""Which plans are worth trying, and which of those that were tried is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf, isfinite

from gradwire.planner.auto.facts import RAW, Assignment, Facts
from gradwire.planner.auto.forecast import Forecast
from gradwire.planner.auto.plans import plans
from gradwire.planner.auto.records import Judged, Shortlist, Verdict
from gradwire.planner.auto.settings import Auto

WORTH = 0.95
"""A plan must take at most this share of the step of the one in force to replace it."""
AT_FIRST = 1.05
"""At first, plans that are predicted to take so much are tried: predictions are not that good."""
NEAR = 1.25
"""Those that are predicted to take at most so much of the best one are tried beside it."""
MOST_TRIED, ALIKE = 4, 0.8
"""How many are tried; and from which share of equal values on two plans are one."""
AS_FAST = 1.03
"""Plans that take up to this times the fastest are as fast."""
CLOSE = 0.75
"""If the best should take more than this share of the plan in force, that is timed once more, like
the others: it was measured while other things were, too."""
TRIAL_S, LEAST_TIMED, MOST_TIMED = 0.6, 3, 8
"""How long a plan is tried, about, and the bounds on the steps that takes."""
LOOK_COST = 0.02
"""The share of a run that looking again may take."""


def shortlist(facts: Facts, auto: Auto, before: Verdict | None = None) -> Shortlist | None:
    """What is worth trying; `before` is what has held so far, None if this is the start.

    None if nothing could be measured, because gradients were zero or not finite.
    """
    if not isfinite(facts.total_energy) or not facts.total_energy:
        return None
    forecast, plan = Forecast(facts), RAW if before is None else before.plan
    raw_s, raw_bias = _raw(forecast, before)
    coded_bias = _coded_bias(forecast, plan)
    judged = []
    for each in plans(forecast, auto.error):
        span_s = forecast.span_s(each) * (raw_bias if each == RAW else coded_bias)
        judged.append(Judged(each, facts.outside_s + span_s, facts.error(each)))
    judged.sort(key=lambda each: each.step_s)
    error = facts.error(plan)
    step_s = facts.step_s if error <= auto.error else inf
    bound = step_s * (AT_FIRST if before is None else WORTH)
    others = [each for each in judged if each.plan != plan]
    tried = _worth_trying(others, bound, facts.values)
    if tried and tried[0].step_s > CLOSE * step_s:
        tried = (*tried, Judged(plan, step_s, error))
    typical = min([facts.step_s, *(each.step_s for each in tried)])
    return Shortlist(
        tried,
        best=others[0] if others else judged[0],
        step_s=step_s,
        outside_s=facts.outside_s,
        error=error,
        timed=min(max(ceil(TRIAL_S / typical), LEAST_TIMED), MOST_TIMED),
        look_in=max(auto.every, ceil(facts.cost_s / (LOOK_COST * typical))),
        raw_s=raw_s,
        raw_bias=raw_bias,
        rate=facts.network.rate,
    )


def verdict(found: Shortlist, before: Assignment, seconds: Sequence[float]) -> Verdict:
    """The fastest of those tried if it is worth it, or the most exact of those that are as fast.

    Else the plan of before. `seconds` are those of a step with each, as measured: they count, and
    not the predictions.
    """
    tried = dict(zip(found.tried, seconds, strict=False))
    plan, error = before, found.error
    step_s = next((s for each, s in tried.items() if each.plan == before), found.step_s)
    bound = min(WORTH * step_s, AS_FAST * min(tried.values(), default=inf))
    worth = [each for each, s in tried.items() if each.plan != before and s <= bound]
    if worth:
        chosen = min(worth, key=lambda each: each.error)
        plan, step_s, error = chosen.plan, tried[chosen], chosen.error
    return Verdict(
        plan,
        step_s,
        error,
        look_in=found.look_in,
        raw_s=step_s if plan == RAW else found.raw_s,
        raw_bias=found.raw_bias,
        rate=found.rate,
        seconds=tuple(seconds),
    )


def _raw(forecast: Forecast, before: Verdict | None) -> tuple[float, float]:
    """Seconds of raw steps, when last measured, and how that compares to what is predicted."""
    if before is not None and before.plan != RAW:
        return before.raw_s, before.raw_bias
    return forecast.facts.step_s, forecast.facts.span_s / max(forecast.span_s(RAW), 1e-9)


def _coded_bias(forecast: Forecast, plan: Assignment) -> float:
    """How the plan in force compares to what is predicted, if it is coded: others will alike."""
    if plan == RAW:
        return 1.0
    return forecast.facts.span_s / max(forecast.span_s(plan), 1e-9)


def _worth_trying(
    judged: Sequence[Judged], bound: float, values: Mapping[int, int]
) -> tuple[Judged, ...]:
    """The best, and others near it that are not almost the same."""
    tried: list[Judged] = []
    for each in judged:
        if each.step_s > bound or (tried and each.step_s > NEAR * tried[0].step_s):
            break
        alike = any(each.plan.agreement(other.plan, values) > ALIKE for other in tried)
        if len(tried) < MOST_TRIED and not alike:
            tried.append(each)
    return tuple(tried)
