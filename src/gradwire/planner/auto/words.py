"""What `auto` has found and decided, in plain words."""

from __future__ import annotations

from math import isinf

from gradwire.planner.auto.facts import RAW, Assignment, tally
from gradwire.planner.auto.records import Shortlist, Verdict
from gradwire.planner.units import show_rate, show_seconds


def plan_in_words(plan: Assignment, layers: int) -> str:
    """How many layers go through which codec.

    >>> plan_in_words(Assignment(((0, "dqsg"), (1, "dqsg"), (2, "qsgd:bits=4"))), 4)
    '2 layers by dqsg, 1 by qsgd:bits=4 and 1 raw'
    """
    counts = tally([*plan.by_layer.values(), *[None] * (layers - len(plan.specs))])
    first, *rest = [f"{n} {_way(spec)}" for spec, n in counts.items()]
    most = next(iter(counts.values()))
    first = first.replace(" ", " layer " if most == 1 else " layers ", 1)
    if not rest:
        return first if layers == 1 else f"all {first}"
    return f"{', '.join([first, *rest[:-1]])} and {rest[-1]}"


def _way(spec: str | None) -> str:
    return "raw" if spec is None else f"by {spec}"


def trying(found: Shortlist, layers: int) -> str:
    """What was measured, and what is about to be tried."""
    best, count = found.tried[0], len(found.tried)
    so_far = f"{show_seconds(found.step_s)} a step so far"
    if isinf(found.step_s):
        so_far = f"and messages lose too much by now, {found.error:.2g}"
    return (
        f"{show_rate(found.rate)} link, {so_far}. Trying "
        f"{f'{count} plans' if count > 1 else 'a plan'} for {found.timed + 1} steps"
        f"{' each' if count > 1 else ''}; {plan_in_words(best.plan, layers)} should take "
        f"{show_seconds(best.step_s)}."
    )


def decided(found: Shortlist, chosen: Verdict, before: Assignment, layers: int, step: int) -> str:
    """What holds from now on, and why; `step` is the number of this step."""
    look = f"{_tried(found, chosen, layers)}Next look at step {step + chosen.look_in}."
    if chosen.plan != before:
        return f"{_changed(chosen, layers)} {look}"
    if chosen.plan == RAW:
        return f"nothing pays here: {_why_raw(found, layers)} {look}"
    return (
        f"the plan stays: {plan_in_words(chosen.plan, layers)}, {show_seconds(chosen.step_s)} a "
        f"step, error {chosen.error:.2g}. {look}"
    )


def _tried(found: Shortlist, chosen: Verdict, layers: int) -> str:
    """What the plans that were tried took, and should have taken."""
    each = [
        f"{plan_in_words(plan.plan, layers)} {show_seconds(seconds)} (predicted "
        f"{show_seconds(plan.step_s)})"
        for plan, seconds in zip(found.tried, chosen.seconds, strict=True)
    ]
    return f"Tried: {'; '.join(each)}. " if each else ""


def _changed(chosen: Verdict, layers: int) -> str:
    if chosen.plan == RAW:
        return f"back to raw gradients, which take {show_seconds(chosen.step_s)} a step."
    return (
        f"from now on {plan_in_words(chosen.plan, layers)}: {show_seconds(chosen.step_s)} a step "
        f"instead of {show_seconds(chosen.raw_s)} raw, error {chosen.error:.2g}."
    )


def _why_raw(found: Shortlist, layers: int) -> str:
    best = found.best
    rate, raw_s = show_rate(found.rate), show_seconds(found.step_s)
    if best.plan == RAW:
        return f"no codec keeps to the error budget. Gradients travel raw, {raw_s} a step."
    tried = "was tried and is" if best in found.tried else "is predicted to be"
    return (
        f"{rate} link, {raw_s} a raw step, and the best plan, {plan_in_words(best.plan, layers)}, "
        f"{tried} not 5 % faster. Gradients travel raw."
    )


def standing(held: Verdict | None, look_at: int, doing: str) -> str:
    """Where it stands, for the last line of a plan."""
    if held is None or doing:
        return f"auto: {doing or 'about to measure'}"
    return (
        f"auto: {show_seconds(held.step_s)} a step, {show_seconds(held.raw_s)} raw, error "
        f"{held.error:.2g}; next look at step {look_at}"
    )
