"""What a comparison comes to, in a sentence: how much sooner, or that it did not pay."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.lab.records import Evaluation, Result
from gradwire.lab.scores import behind, reference, score_text, written
from gradwire.terminal.output import counted

EVEN = 0.05  # a difference of time or of score that says nothing


def summary(results: Sequence[Result]) -> str:
    """Sum up the results."""
    return _of_steps(results) if results[0].target is None else _of_target(results)


def _of_target(results: Sequence[Result]) -> str:
    arrived = [(each, each.reached) for each in results if each.reached is not None]
    goal = _goal(results[0])
    if not arrived:
        best = _best_score(results)
        return (
            f"{_none_of(results)} reached {goal} in {counted(results[0].steps, 'step')}; "
            f"`{best.label}` came nearest, with {score_text(best)}."
        )
    first, when = min(arrived, key=lambda pair: pair[1].seconds)
    base = reference(results)
    how = f"`{first.label}` reached {goal} after {_took(when)}"
    if len(results) == 1:
        return f"{how}."
    if base is None:
        return f"{how}, sooner than the others."
    if base.reached is None:
        return f"{how}; `{base.label}` did not reach it in {counted(base.steps, 'step')}."
    if first is base:
        whom = _none_of(results)
        return f"{whom} reached {goal} sooner than `{base.label}`, which took {_took(when)}."
    factor = base.reached.seconds / when.seconds
    return (
        f"`{first.label}` reached {goal} {_times(factor)} sooner than `{base.label}` (float32): "
        f"after {_took(when)} instead of {_took(base.reached)}."
    )


def _of_steps(results: Sequence[Result]) -> str:
    base = reference(results)
    fastest = min(results, key=lambda each: each.step_s)
    if len(results) == 1:
        return f"A step with `{fastest.label}` took {_ms(fastest)}."
    if base is None:
        return f"`{fastest.label}` took the shortest steps, {_ms(fastest)} each."
    if fastest is base or base.step_s / fastest.step_s < 1 + EVEN:
        whom = _none_of(results)
        return f"{whom} made a step much shorter than `{base.label}` did, which took {_ms(base)}."
    share = behind(fastest, results)
    worse = "" if share is None else f", with a score {abs(share):.1%} {_side(share)}"
    return (
        f"`{fastest.label}` made a step {_times(base.step_s / fastest.step_s)} shorter than "
        f"`{base.label}` did, {_ms(fastest)} instead of {_ms(base)}{worse}."
    )


def _none_of(results: Sequence[Result]) -> str:
    """Rows differ by codec, or by algorithm too."""
    return "No codec" if len({each.algorithm for each in results}) == 1 else "No training"


def _times(factor: float) -> str:
    return f"{factor:.1f}" + " times"


def _side(share: float) -> str:
    return "worse" if share > 0 else "better"


def _ms(result: Result) -> str:
    return f"{1000 * result.step_s:.0f} ms"


def _took(when: Evaluation) -> str:
    return f"{when.seconds:.1f} s"


def _goal(result: Result) -> str:
    assert result.target is not None
    return f"{written(result.target, result.score_name)} {result.score_name.replace('_', ' ')}"


def _best_score(results: Sequence[Result]) -> Result:
    sign = 1 if results[0].higher_is_better else -1
    return max(results, key=lambda each: sign * each.score)
